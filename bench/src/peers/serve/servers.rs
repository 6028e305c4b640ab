//! Servers of the same objects, each in a separate process.

use std::fmt;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash_support::group::Group;
use bywash_support::process::BywashProcess;
use bywash_support::sign::Signer;
use http_body_util::Full;
use hyper::Request;
use hyper::header::HOST;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::signer::Signer as _;
use reqwest::Method;

use super::load::{SignedRequest, Tls};
use super::{BUCKET, MEMORY_BYTES};
use crate::Failure;
use crate::peers::install::go_program;
use crate::process::Process;

/// Version that is installed by Go if it is missing.
const VERSITYGW: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";
/// How an error names nginx.
pub(in crate::peers) const NGINX: &str = "nginx (apt-get install nginx-light)";
pub(in crate::peers) const ACCESS_KEY: &str = "benchmark";
pub(in crate::peers) const SECRET_KEY: &str = "benchmark-secret";
/// Max time until a server listens.
const START: Duration = Duration::from_secs(20);
/// Max validity of presigned URLs.
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    /// Ends when dropped.
    _process: Box<dyn fmt::Debug>,
    pub(super) id: u32,
    pub(super) address: SocketAddr,
    /// Signer of its requests; `None` if it requires no signatures.
    signer: Option<AmazonS3>,
}

impl Server {
    /// Starts `bywash serve` over a folder, with a key; with TLS if a certificate is given.
    pub(super) fn bywash(
        program: &Path,
        folder: &Path,
        data_dir: &Path,
        tls: Option<&Tls>,
    ) -> Result<Self, Failure> {
        Self::bywash_with(program, folder, data_dir, tls, &[])
    }

    /// As [`Self::bywash`], with more options.
    pub(super) fn bywash_with(
        program: &Path,
        folder: &Path,
        data_dir: &Path,
        tls: Option<&Tls>,
        options: &[String],
    ) -> Result<Self, Failure> {
        let mut command = Command::new(program);
        command
            .args(["serve", &format!("{BUCKET}=file://{}", folder.display())])
            .args(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY])
            .args(["--s3-addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0"])
            .arg("--gcs-addr=off")
            .arg(format!("--memory={MEMORY_BYTES}"))
            .arg("--data-dir")
            .arg(data_dir)
            .args(options);
        if let Some(tls) = tls {
            command.arg("--tls-cert").arg(&tls.certificate);
            command.arg("--tls-key").arg(&tls.key);
        }
        let process = BywashProcess::start(&mut command)?;
        let url = &process.addresses.s3;
        let address = url.rsplit('/').next().unwrap_or_default().parse();
        let address = address.map_err(|_| format!("{url} names no address"))?;
        Ok(Self {
            id: process.id(),
            _process: Box::new(process),
            address,
            signer: Some(signer(address)?),
        })
    }

    /// Starts nginx on files, with as many processes as cores.
    pub(super) fn nginx(root: &Path, work: &Path, sendfile: bool) -> Result<Self, Failure> {
        Self::nginx_with(root, work, sendfile, None)
    }

    /// As [`Self::nginx`]; with TLS if a certificate is given.
    pub(super) fn nginx_with(
        root: &Path,
        work: &Path,
        sendfile: bool,
        tls: Option<&Tls>,
    ) -> Result<Self, Failure> {
        let address = free_address()?;
        let (ssl, certificate) = tls.map_or(Default::default(), |tls| {
            let (certificate, key) = (tls.certificate.display(), tls.key.display());
            let lines = format!(
                "ssl_protocols TLSv1.3; ssl_certificate {certificate}; ssl_certificate_key {key};"
            );
            (" ssl", lines)
        });
        let server = format!(
            "sendfile {sendfile}; open_file_cache max=1000; default_type application/octet-stream;\n\
             server {{ listen {address}{ssl}; {certificate} root {root}; }}",
            root = root.display(),
            sendfile = if sendfile { "on" } else { "off" },
        );
        Self::nginx_of(work, address, &server)
    }

    /// Starts nginx as a proxy with `proxy_cache` in front of an origin.
    pub(super) fn nginx_proxy(origin: SocketAddr, work: &Path) -> Result<Self, Failure> {
        let address = free_address()?;
        let server = format!(
            "sendfile on; proxy_cache_path {work}/cache levels=1:2 keys_zone=cold:8m inactive=7d use_temp_path=off;\n\
             upstream origin {{ server {origin}; keepalive 64; }}\n\
             server {{ listen {address}; location / {{\n\
             proxy_cache cold; proxy_cache_valid 200 7d; proxy_max_temp_file_size 0;\n\
             proxy_set_header Connection \"\"; proxy_http_version 1.1; proxy_pass http://origin; }} }}",
            work = work.display(),
        );
        Self::nginx_of(work, address, &server)
    }

    /// Starts nginx with these lines of its `http` block.
    fn nginx_of(work: &Path, address: SocketAddr, http: &str) -> Result<Self, Failure> {
        std::fs::create_dir_all(work)?;
        let settings = work.join("nginx.conf");
        std::fs::write(
            &settings,
            format!(
                "daemon off; worker_processes auto; user root; pid {work}/nginx.pid; error_log stderr error;\n\
                 events {{ worker_connections 16000; }}\n\
                 http {{ access_log off; keepalive_requests 1000000000;\n\
                 client_body_temp_path {work}; proxy_temp_path {work}; fastcgi_temp_path {work};\n\
                 uwsgi_temp_path {work}; scgi_temp_path {work};\n\
                 {http} }}\n",
                work = work.display(),
            ),
        )?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(work).arg("-c").arg(&settings);
        let process = listening(None, &mut command, NGINX, address)?;
        Ok(Self {
            id: process.child.id(),
            _process: Box::new(process),
            address,
            signer: None,
        })
    }

    /// Starts versitygw on a folder with one folder per bucket.
    pub(super) fn versitygw(buckets: &Path) -> Result<Self, Failure> {
        let address = free_address()?;
        let mut command = Command::new(go_program("versitygw", VERSITYGW)?);
        command
            .args(["--access", ACCESS_KEY, "--secret", SECRET_KEY])
            .args(["--port", &address.to_string(), "--quiet", "posix"])
            .arg(buckets);
        let process = listening(None, &mut command, "versitygw", address)?;
        Ok(Self {
            id: process.child.id(),
            _process: Box::new(process),
            address,
            signer: Some(signer(address)?),
        })
    }

    /// Returns a request of a path in the bucket, signed by headers if the server requires that. The query is canonical.
    pub(super) fn request(
        &self,
        method: &Method,
        key: &str,
        query: &str,
        body: Bytes,
    ) -> Result<SignedRequest, Failure> {
        request(
            self.address,
            self.signer.is_some(),
            (method, key, query),
            body,
        )
    }

    /// Returns a URL by which an object can be read without credentials.
    pub(super) async fn url(&self, key: &str) -> Result<String, Failure> {
        let Some(signer) = &self.signer else {
            return Ok(format!("http://{}/{BUCKET}/{key}", self.address));
        };
        let url = signer.signed_url(Method::GET, &key.into(), WEEK).await?;
        Ok(url.into())
    }
}

/// Returns a request of a path in the bucket, signed by headers if `is_signed`. The query is canonical.
pub(in crate::peers) fn request(
    server: SocketAddr,
    is_signed: bool,
    (method, key, query): (&Method, &str, &str),
    body: Bytes,
) -> Result<SignedRequest, Failure> {
    let path = if key.is_empty() {
        format!("/{BUCKET}")
    } else {
        format!("/{BUCKET}/{key}")
    };
    let target = match query {
        "" => path.clone(),
        query => format!("{path}?{query}"),
    };
    let host = server.to_string();
    let mut request = Request::builder()
        .method(method.clone())
        .uri(target)
        .header(HOST, &host);
    if is_signed {
        let signer = Signer {
            access_key: ACCESS_KEY.to_owned(),
            secret_key: SECRET_KEY.to_owned(),
            host,
            ..Signer::default()
        };
        let method = method.as_str();
        let (headers, _) = signer.headers(method, &path, query, "UNSIGNED-PAYLOAD", &[]);
        for (name, value) in headers {
            request = request.header(name, value);
        }
    }
    Ok(request.body(Full::new(body))?)
}

/// Starts a server that does not say when it listens, in a control group if there is one, and waits until it does.
#[allow(
    clippy::disallowed_methods,
    reason = "a program that others wrote does not say when it listens"
)]
pub(in crate::peers) fn listening(
    group: Option<&Group>,
    command: &mut Command,
    what: &str,
    address: SocketAddr,
) -> Result<Process, Failure> {
    let process = Process::start_in(group, command).map_err(|error| format!("{what}: {error}"))?;
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() {
        if begun.elapsed() > START {
            return Err(format!("{what} does not listen on {address}").into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(process)
}

fn signer(address: SocketAddr) -> Result<AmazonS3, Failure> {
    Ok(AmazonS3Builder::new()
        .with_endpoint(format!("http://{address}"))
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name(BUCKET)
        .with_access_key_id(ACCESS_KEY)
        .with_secret_access_key(SECRET_KEY)
        .build()?)
}

/// An address that was free a moment ago, for servers that cannot say which one they chose.
pub(in crate::peers) fn free_address() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

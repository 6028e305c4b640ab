//! Servers of Google's storage API, each in a separate process.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bywash_support::account::{EMAIL, PEM, token};
use bywash_support::process::BywashProcess;
use serde_json::{Value, json};

use crate::Failure;
use crate::peers::install::{done, go_program};
use crate::peers::serve::{ACCESS_KEY, BUCKET, MEMORY_BYTES, SECRET_KEY, free_address, listening};

/// Max time of a request beside the measured ones.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// Version that is installed by Go if it is missing.
const FAKE_GCS: &str = "github.com/fsouza/fake-gcs-server@v1.56.1";

/// A running server.
pub(super) struct Server {
    /// Ends when dropped.
    _process: Box<dyn fmt::Debug>,
    pub(super) id: u32,
    pub(super) gcs: SocketAddr,
    /// The S3 endpoint, if it has one.
    pub(super) s3: Option<SocketAddr>,
    /// An access token; `None` if it serves all requests.
    pub(super) token: Option<String>,
}

impl Server {
    /// Starts `bywash serve` over a folder: for all requests, or with a key and a service account.
    pub(super) async fn bywash(
        program: &Path,
        objects: &Path,
        data: &Path,
        anonymous: bool,
    ) -> Result<Self, Failure> {
        let mut command = Command::new(program);
        command
            .args(["serve", &format!("{BUCKET}=file://{}", objects.display())])
            .args(["--s3-addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0"])
            .arg("--gcs-addr=127.0.0.1:0")
            .arg(format!("--memory={MEMORY_BYTES}"))
            .arg("--data-dir")
            .arg(data);
        if anonymous {
            command.arg("--anonymous");
        } else {
            command.args(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]);
        }
        let process = BywashProcess::start(&mut command)?;
        let gcs = process.addresses.gcs.as_deref().unwrap_or_default();
        let gcs = gcs.rsplit('/').next().unwrap_or_default().parse();
        let gcs = gcs.map_err(|_| "the server printed no address of its GCS endpoint")?;
        let token = match anonymous {
            true => None,
            false => {
                make_account(program, data)?;
                Some(access_token(gcs).await?)
            }
        };
        Ok(Self {
            id: process.id(),
            s3: Some(process.addresses.s3_address()),
            _process: Box::new(process),
            gcs,
            token,
        })
    }

    /// Starts fake-gcs-server with files below `root`.
    pub(super) fn fake_gcs(root: &Path) -> Result<Self, Failure> {
        std::fs::create_dir_all(root.join(BUCKET))?;
        let address = free_address()?;
        let mut command = Command::new(go_program("fake-gcs-server", FAKE_GCS)?);
        command
            .args(["-scheme", "http", "-host", "127.0.0.1"])
            .args(["-port", &address.port().to_string()])
            .args(["-backend", "filesystem", "-log-level", "error"])
            .args(["-external-url", &format!("http://{address}")])
            .arg("-filesystem-root")
            .arg(root);
        let process = listening(None, &mut command, "fake-gcs-server", address)?;
        Ok(Self {
            id: process.child.id(),
            _process: Box::new(process),
            gcs: address,
            s3: None,
            token: None,
        })
    }

    /// Deletes all objects, so that rounds do not fill the disk.
    pub(super) async fn clear(&self) -> Result<(), Failure> {
        let client = client()?;
        let objects = format!("http://{}/storage/v1/b/{BUCKET}/o", self.gcs);
        let list = client.get(&objects).send().await?.error_for_status()?;
        let list: Value = serde_json::from_slice(&list.bytes().await?)?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        for name in items.iter().filter_map(|item| item["name"].as_str()) {
            let deleted = client.delete(format!("{objects}/{name}")).send().await?;
            deleted.error_for_status()?;
        }
        Ok(())
    }
}

/// Makes a service account of the server that uses a data folder. Its private key is that of tests.
fn make_account(program: &Path, data: &Path) -> Result<(), Failure> {
    let key = data.with_extension("pem");
    std::fs::write(&key, PEM)?;
    let name = EMAIL.split('@').next().unwrap_or_default();
    done(
        Command::new(program)
            .args(["keys", "create", "--gcs", "--name", name, "--key-file"])
            .arg(&key)
            .arg("--data-dir")
            .arg(data)
            .stdout(std::process::Stdio::null()),
    )
}

/// Exchanges an assertion of the account for an access token, as clients do.
async fn access_token(server: SocketAddr) -> Result<String, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let claims = json!({"iss": EMAIL, "sub": EMAIL, "aud": "https://oauth2.googleapis.com/token",
        "iat": now, "exp": now + 3600});
    let form = format!(
        "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion={}",
        token(&claims)
    );
    let given = client()?
        .post(format!("http://{server}/token"))
        .header("Content-Type", "application/x-www-form-urlencoded")
        .body(form)
        .send()
        .await?
        .error_for_status()?;
    let given: Value = serde_json::from_slice(&given.bytes().await?)?;
    let token = given["access_token"].as_str();
    Ok(token.ok_or("the token endpoint gave no token")?.to_owned())
}

/// A client of requests that take no time.
fn client() -> Result<reqwest::Client, Failure> {
    Ok(reqwest::Client::builder().timeout(MAX_WAIT).build()?)
}

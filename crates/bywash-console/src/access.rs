//! Access to the page and the series: requests that carry the server's key pair or a session.
//!
//! Programs send it with each request, as HTTP Basic or as `Authorization: Token KEY:SECRET` (which
//! Influx clients of both versions can send). A browser sends it once, by a form, and gets a
//! cookie. The page never requests Basic: a browser would keep the pair and add it to requests that
//! other sites make.

use std::fmt;
use std::net::SocketAddr;

use axum::Form;
use axum::extract::{Query, Request, State};
use axum::http::header::{ACCEPT, AUTHORIZATION, COOKIE, LOCATION, SET_COOKIE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rand::distr::{Alphanumeric, SampleString};
use serde::Deserialize;
use subtle::ConstantTimeEq;

use crate::{Shared, page};

/// Characters of a session's token, of 62 kinds each: more than 256 bits.
const TOKEN_LENGTH: usize = 48;

/// Requests that are admitted.
#[derive(Clone, PartialEq, Eq)]
pub enum Access {
    /// Those with this pair of keys, or with a session.
    Key {
        /// The access key id.
        access_key: String,
        /// The secret key.
        secret_key: String,
    },
    /// All of this machine.
    Anonymous,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret never reaches a log.
        f.write_str(match self {
            Self::Key { .. } => "Key",
            Self::Anonymous => "Anonymous",
        })
    }
}

/// Checks the requests of one listener.
#[derive(Debug)]
pub(crate) struct Guard {
    access: Access,
    /// Address of the listener.
    address: SocketAddr,
    /// Value of the session cookie. A new one each start, so a restart ends all sessions.
    token: String,
    /// Name of the cookie. Cookies are not bound to ports: the name keeps the sessions of two servers apart.
    cookie: String,
}

impl Guard {
    pub(crate) fn new(access: Access, address: SocketAddr) -> Self {
        Self {
            access,
            address,
            // The thread's generator is a cryptographic one, seeded by the system.
            token: Alphanumeric.sample_string(&mut rand::rng(), TOKEN_LENGTH),
            cookie: format!("bywash_session_{}", address.port()),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.access == Access::Anonymous
    }

    /// Whether the request has the key or a session, or needs none.
    fn admits(&self, headers: &HeaderMap) -> bool {
        self.is_anonymous() || self.has_session(headers) || self.has_key(headers)
    }

    fn has_session(&self, headers: &HeaderMap) -> bool {
        let cookies = headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok());
        let mut pairs = cookies
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(name, value)| name == self.cookie && same(value, &self.token))
    }

    fn has_key(&self, headers: &HeaderMap) -> bool {
        given_pair(headers).is_some_and(|(key, secret)| self.is_key(&key, &secret))
    }

    /// Returns whether the pair is the key. Takes a time that depends on the lengths only.
    fn is_key(&self, key: &str, secret: &str) -> bool {
        match &self.access {
            Access::Key {
                access_key,
                secret_key,
            } => same(key, access_key) & same(secret, secret_key),
            Access::Anonymous => true,
        }
    }

    fn set_cookie(&self, token: &str, age: &str) -> String {
        format!(
            "{}={token}; Path=/; HttpOnly; SameSite=Strict{age}",
            self.cookie
        )
    }
}

/// The access key and the secret key of a request that carries both.
pub(crate) fn given_pair(headers: &HeaderMap) -> Option<(String, String)> {
    let given = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, given) = given.split_once(' ')?;
    let given = given.trim();
    let pair = if scheme.eq_ignore_ascii_case("basic") {
        String::from_utf8(BASE64_STANDARD.decode(given).ok()?).ok()?
    } else if scheme.eq_ignore_ascii_case("token") {
        given.to_owned()
    } else {
        return None;
    };
    let (key, secret) = pair.split_once(':')?;
    Some((key.to_owned(), secret.to_owned()))
}

/// Compares in a time that depends on the lengths only.
pub(crate) fn same(given: &str, known: &str) -> bool {
    given.as_bytes().ct_eq(known.as_bytes()).into()
}

/// Admits requests with the key or a session. Redirects others to the form if they accept HTML; else returns 401.
pub(crate) async fn require_key(
    State(shared): State<Shared>,
    request: Request,
    next: Next,
) -> Response {
    if shared.guard.admits(request.headers()) {
        return next.run(request).await;
    }
    let accepts = request
        .headers()
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok());
    if request.method() == Method::GET && accepts.is_some_and(|kinds| kinds.contains("text/html")) {
        let target = request
            .uri()
            .path_and_query()
            .map_or("/", |target| target.as_str());
        let target = utf8_percent_encode(target, NON_ALPHANUMERIC);
        return see_other(&format!("/login?next={target}"));
    }
    if request.uri().query().is_some_and(has_password) {
        return unauthorized(
            "u and p of a query are not read: logs keep addresses; send the pair as HTTP Basic\n",
        );
    }
    ask_for_key()
}

/// The response to a program without a key.
pub(crate) fn ask_for_key() -> Response {
    unauthorized(
        "give the server's access key and secret key as HTTP Basic; `bywash env` prints them\n",
    )
}

fn unauthorized(message: &'static str) -> Response {
    let basic = "Basic realm=\"bywash\", charset=\"UTF-8\"";
    (
        StatusCode::UNAUTHORIZED,
        [(WWW_AUTHENTICATE, basic)],
        message,
    )
        .into_response()
}

/// Whether a query has a name and a password as clients of InfluxDB 1 can send them.
fn has_password(query: &str) -> bool {
    let names = query.split('&').map(|pair| pair.split('=').next());
    names.flatten().any(|name| name == "u" || name == "p")
}

fn see_other(target: &str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, target)]).into_response()
}

#[derive(Debug, Deserialize)]
pub(crate) struct LoginQuery {
    next: Option<String>,
}

/// `GET /login`: the form.
pub(crate) async fn form(
    State(shared): State<Shared>,
    Query(query): Query<LoginQuery>,
    headers: HeaderMap,
) -> Response {
    let next = query.next.unwrap_or_default();
    if shared.guard.admits(&headers) {
        return see_other(page_here(&next));
    }
    page::login(page_here(&next), None).into_response()
}

#[derive(Deserialize)]
pub(crate) struct LoginForm {
    access_key: String,
    secret_key: String,
    next: Option<String>,
}

/// `POST /login`: checks the pair and sets the cookie.
pub(crate) async fn login(State(shared): State<Shared>, Form(given): Form<LoginForm>) -> Response {
    let next = given.next.unwrap_or_default();
    let next = page_here(&next);
    if !shared
        .guard
        .is_key(given.access_key.trim(), given.secret_key.trim())
    {
        tracing::warn!("refused a login with a wrong key");
        let form = page::login(next, Some("That is not the key of this server."));
        return (StatusCode::FORBIDDEN, form).into_response();
    }
    let cookie = shared.guard.set_cookie(&shared.guard.token, "");
    ([(SET_COOKIE, cookie)], see_other(next)).into_response()
}

/// `POST /logout`: deletes the cookie.
pub(crate) async fn logout(State(shared): State<Shared>) -> Response {
    let cookie = shared.guard.set_cookie("", "; Max-Age=0");
    ([(SET_COOKIE, cookie)], see_other("/login")).into_response()
}

/// Returns `target` if it is the page, else `/`: a login must not redirect elsewhere.
fn page_here(target: &str) -> &str {
    let is_page = target
        .parse::<Uri>()
        .is_ok_and(|uri| uri.path() == "/" && uri.host().is_none());
    if is_page { target } else { "/" }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn guard() -> Guard {
        let access = Access::Key {
            access_key: "key".to_owned(),
            secret_key: "se:cret".to_owned(),
        };
        Guard::new(access, "127.0.0.1:8422".parse().unwrap())
    }

    fn headers(name: axum::http::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn only_the_key_pair_is_accepted() {
        let guard = guard();
        let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
        for right in [
            basic("key:se:cret"),
            basic("key:se:cret").replace("Basic", "bAsIc"),
            "Token key:se:cret".to_owned(),
        ] {
            assert!(guard.admits(&headers(AUTHORIZATION, &right)), "{right}");
        }
        for wrong in [
            basic("key:secret"),
            basic("Key:se:cret"),
            basic("key:"),
            basic(":"),
            basic("key"),
            basic("key:se:cret "),
            "Basic ???".to_owned(),
            "Bearer key:se:cret".to_owned(),
            "Token".to_owned(),
            "Token key".to_owned(),
        ] {
            assert!(!guard.admits(&headers(AUTHORIZATION, &wrong)), "{wrong}");
        }
        assert!(!guard.admits(&HeaderMap::new()));
    }

    #[test]
    fn session_is_accepted_by_the_cookie_of_this_port() {
        let guard = guard();
        let right = format!("other=1; bywash_session_8422={}; more=2", guard.token);
        assert!(guard.admits(&headers(COOKIE, &right)));
        for wrong in [
            "bywash_session_8422=",
            "bywash_session_8422=x",
            &right.replace("8422", "8423"),
        ] {
            assert!(!guard.admits(&headers(COOKIE, wrong)), "{wrong}");
        }
    }

    #[test]
    fn login_redirects_only_to_the_page() {
        assert_eq!(page_here("/?range=1h"), "/?range=1h");
        for elsewhere in [
            "",
            "//evil.example",
            "//evil.example/?a",
            "http://evil.example/",
            "/\\evil.example",
            "/stats",
            "?x",
        ] {
            assert_eq!(page_here(elsewhere), "/", "{elsewhere}");
        }
    }
}

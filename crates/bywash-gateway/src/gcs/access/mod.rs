//! Admission of requests: requests of service accounts by tokens, signed requests, and all requests
//! to an anonymous server.
//!
//! * `account.rs` are service accounts; the server has their public keys.
//! * `jwt.rs` verifies tokens that accounts sign: assertions for the exchange, and tokens that
//!   clients send as they are.
//! * `token.rs` signs and verifies access tokens.
//! * `exchange.rs` gives them for assertions.
//! * `signature.rs` has the rules of signatures of requests, also of signed URLs.
//! * `payload.rs` compares a body with its signed digest.

mod account;
mod exchange;
mod jwt;
mod payload;
mod signature;
mod token;

pub use self::account::{GcsAccount, GcsAccountError};
pub(crate) use self::exchange::{exchange, is_exchange};
#[cfg(any(test, fuzzing))]
pub(crate) use self::jwt::fuzz as fuzz_jwt;
pub(crate) use self::payload::SignedPayload;
pub use self::token::GcsTokenKeys;

use std::io;
use std::sync::Arc;

use bywash::Engine;
use chrono::Utc;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};

use self::account::{Accounts, DOMAIN};
use self::jwt::{Jwt, Purpose, Rights};
use self::signature::{Parameters, SignedRequest};
use super::error::{GcsError, GcsResult};
use super::serve::GcsConfig;
use crate::config::Scope;
use crate::meta::text;
use crate::sigv4::keys::{Secrets, SigningKeys};

/// The audience of tokens that clients sign for Google's storage.
const STORAGE: &str = "https://storage.googleapis.com/";

/// Prefix of Google's access tokens.
const OF_GOOGLE: &str = "ya29.";

/// Decides which requests are served.
pub(crate) struct Access {
    anonymous: bool,
    accounts: Option<(Accounts, GcsTokenKeys)>,
    keys: SigningKeys,
}

/// Rights of an admitted request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    scope: Arc<Scope>,
    /// Rights of its token, within the scope of its account.
    rights: Rights,
    /// An email address or an access key, for the access log.
    pub(crate) name: Option<String>,
    /// The digest of the body, if it is signed.
    pub(crate) payload: Option<SignedPayload>,
}

impl Caller {
    /// The caller of an anonymous server.
    pub(crate) fn anyone() -> Self {
        Self::new(None, &Arc::default())
    }

    fn new(name: Option<String>, scope: &Arc<Scope>) -> Self {
        Self {
            scope: Arc::clone(scope),
            rights: Rights::ReadWrite,
            name,
            payload: None,
        }
    }

    /// Whether it sees a bucket.
    pub(crate) fn sees(&self, bucket: &str) -> bool {
        self.scope.sees(bucket)
    }

    /// Checks that it may do a request on a bucket.
    pub(crate) fn check(&self, method: &Method, bucket: &str) -> GcsResult<()> {
        let reads = matches!(*method, Method::GET | Method::HEAD);
        if self.scope.read_only && !reads {
            return Err(GcsError::forbidden("This key may only read; use another."));
        }
        if self.rights == Rights::ReadOnly && !reads {
            // It begins as Google's message does.
            return Err(GcsError::forbidden(
                "Provided scope(s) are not authorized: the token may only read; request the scope devstorage.read_write.",
            ));
        }
        if bucket.is_empty() || self.sees(bucket) {
            Ok(())
        } else {
            Err(GcsError::forbidden(format!(
                "This key does not reach the bucket {bucket}; use another."
            )))
        }
    }
}

/// The caller of a request that was admitted without waiting.
#[derive(Debug)]
pub(crate) struct KnownCaller {
    /// `None`: anyone, at an anonymous server.
    account: Option<Arc<GcsAccount>>,
}

impl KnownCaller {
    /// The caller of an anonymous server.
    pub(crate) fn anyone() -> Self {
        Self { account: None }
    }

    /// Whether it sees a bucket.
    pub(crate) fn sees(&self, bucket: &str) -> bool {
        let account = self.account.as_ref();
        account.is_none_or(|account| account.scope.sees(bucket))
    }

    /// Its email address, for the access log.
    pub(crate) fn name(&self) -> Option<String> {
        self.account.as_ref().map(|account| account.email())
    }
}

impl Access {
    /// Reads the key of access tokens in the folder of accounts, unless keys are given. Blocks.
    pub(crate) fn open(config: &GcsConfig, engine: &Engine) -> io::Result<Self> {
        let folder = config.accounts.clone();
        let tokens = match (&config.token_keys, &folder) {
            (Some(keys), _) => Some(keys.clone()),
            (None, Some(folder)) => Some(GcsTokenKeys::open_or_replace(folder, engine)?),
            (None, None) if config.listed_accounts.is_empty() => None,
            (None, None) => Some(GcsTokenKeys::random()),
        };
        let accounts = tokens.map(|keys| (Accounts::new(folder, &config.listed_accounts), keys));
        Ok(Self {
            anonymous: config.anonymous,
            accounts,
            keys: SigningKeys::new(Secrets::new(&config.credentials)),
        })
    }

    /// Whether a request has a token or a signature, valid or not, or needs none.
    pub(crate) fn is_claimed(&self, parts: &Parts) -> bool {
        self.anonymous
            || parts.headers.contains_key(AUTHORIZATION)
            || Parameters::of(&parts.uri)
                .and_then(|parameters| Ok(SignedRequest::find(parts, &parameters)?.is_some()))
                .unwrap_or(true)
    }

    /// Finds the rights of a request.
    ///
    /// # Errors
    /// If it has neither a valid token nor a valid signature, unless the server is anonymous.
    pub(crate) async fn admit(&self, parts: &Parts) -> GcsResult<Caller> {
        if self.anonymous {
            return Ok(Caller::anyone());
        }
        let parameters = Parameters::of(&parts.uri)?;
        if let Some(claimed) = SignedRequest::find(parts, &parameters)? {
            return self.signed(&claimed).await;
        }
        match bearer(&parts.headers) {
            Some(token) => self.bearer(token).await,
            None => Err(GcsError::login()),
        }
    }

    /// As [`Self::admit`], without waiting: any request to an anonymous server, and one with an
    /// access token of an account that was read recently. Returns `None` where that does not
    /// decide, and for refused requests.
    pub(crate) fn admit_known(&self, authorization: Option<&HeaderValue>) -> Option<KnownCaller> {
        if self.anonymous {
            return Some(KnownCaller::anyone());
        }
        let (accounts, key) = self.accounts.as_ref()?;
        let token = token_of(authorization?.to_str().ok()?)?;
        if is_jwt(token) {
            return None;
        }
        let found = key.verify(token, Utc::now().timestamp())?;
        let account = accounts.kept(&found.account)?;
        found.is_of(&account).then_some(KnownCaller {
            account: Some(account),
        })
    }

    async fn bearer(&self, token: &str) -> GcsResult<Caller> {
        let Some((accounts, key)) = &self.accounts else {
            return Err(GcsError::unauthenticated(
                "This server has no service accounts.",
            ));
        };
        let now = Utc::now().timestamp();
        if !is_jwt(token) || token.starts_with(OF_GOOGLE) {
            let unknown = || {
                GcsError::unauthenticated(if token.starts_with(OF_GOOGLE) {
                    "The access token is Google's, which only Google can verify; use a key file of this server \
                             (bywash keys create --gcs)."
                } else {
                    "The access token is not one of this server's, or has expired."
                })
            };
            let found = key.verify(token, now).ok_or_else(unknown)?;
            let account = accounts.named(&found.account).await.map_err(unreadable)?;
            let account = account.filter(|account| found.is_of(account));
            let account = account.ok_or_else(unknown)?;
            return Ok(caller_of(&account, found.rights));
        }
        let refused = |reason: &dyn std::fmt::Display| {
            GcsError::unauthenticated(format!("The token is refused: {reason}."))
        };
        let jwt = Jwt::parse(token).map_err(|error| refused(&error))?;
        let account = account_of(accounts, &jwt).await?;
        let purpose = Purpose::Bearer(&[STORAGE, &account.endpoint]);
        let verified = jwt.verify(&account.public_key, purpose, now);
        let rights = verified.map_err(|error| refused(&error))?;
        Ok(caller_of(&account, rights))
    }

    async fn signed(&self, claimed: &SignedRequest<'_>) -> GcsResult<Caller> {
        let refused = || {
            GcsError::forbidden(
                "The signature does not match the request and the key of this server.",
            )
        };
        if !claimed.is_valid_at(Utc::now().timestamp()) {
            return Err(GcsError::forbidden(
                "The signature has expired, or its date is too far from the server's time; set the clock.",
            ));
        }
        let caller = if claimed.is_by_account() {
            let (accounts, _) = self.accounts.as_ref().ok_or_else(refused)?;
            let account = accounts
                .find(claimed.identity())
                .await
                .map_err(unreadable)?;
            let account = account.filter(|account| claimed.is_by_key(&account.public_key));
            caller_of(&*account.ok_or_else(refused)?, Rights::ReadWrite)
        } else {
            let found = claimed.signatory(&self.keys).ok_or_else(refused)?;
            Caller::new(Some(found.access_key.to_string()), &found.scope)
        };
        Ok(Caller {
            payload: claimed.payload_digest().map(SignedPayload::new),
            ..caller
        })
    }
}

fn caller_of(account: &GcsAccount, rights: Rights) -> Caller {
    let scope = Arc::new(account.scope.clone());
    Caller {
        rights,
        ..Caller::new(Some(account.email()), &scope)
    }
}

/// Finds the account that a token states, if it has the key that the token states.
async fn account_of(accounts: &Accounts, jwt: &Jwt<'_>) -> GcsResult<Arc<GcsAccount>> {
    let account = accounts.find(jwt.issuer()).await.map_err(unreadable)?;
    let account = account.filter(|account| account.key_id == jwt.key_id());
    account.ok_or_else(|| {
        GcsError::unauthenticated(if jwt.issuer().ends_with(DOMAIN) { "The token is refused: this server has no such account and key." } else { "The token is refused: its key file is not of this server; make one with bywash keys create --gcs." })
    })
}

fn unreadable(error: io::Error) -> GcsError {
    tracing::error!("a service account cannot be read: {error}");
    GcsError::unavailable("The service account cannot be read now; try again.")
}

/// The bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    token_of(text(headers, AUTHORIZATION.as_str())?)
}

/// The bearer token of an Authorization header.
fn token_of(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Whether a token was signed by a client, and was not given by this server.
fn is_jwt(token: &str) -> bool {
    token.split('.').count() == 3
}

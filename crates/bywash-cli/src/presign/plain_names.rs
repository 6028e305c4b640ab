//! Signatures of Azure's addresses for names that need percent signs in them.
//!
//! A shared access signature is of the name as it is, but object_store 0.14.2 has the name signed as its address has it, percent
//! signs and all, which Azure refuses. Of all that is signed only the name can have a percent sign, so they are resolved here.

use hmac::{Hmac, KeyInit, Mac};
use object_store::client::{
    CryptoProvider, DigestAlgorithm, DigestContext, HmacContext, Signer, SigningAlgorithm,
};
use object_store::{Error, Result};
use percent_encoding::percent_decode;
use sha2::Sha256;

/// Signs what it is given without its percent-encoding. Signing of addresses takes no more than this.
#[derive(Debug)]
pub(super) struct PlainNames;

struct Plain {
    text: Vec<u8>,
    key: Vec<u8>,
    signature: Vec<u8>,
}

impl CryptoProvider for PlainNames {
    fn digest(&self, _algorithm: DigestAlgorithm) -> Result<Box<dyn DigestContext>> {
        Err(unneeded("digest"))
    }

    fn hmac(&self, algorithm: DigestAlgorithm, secret: &[u8]) -> Result<Box<dyn HmacContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => Ok(Box::new(Plain {
                text: Vec::new(),
                key: secret.to_vec(),
                signature: Vec::new(),
            })),
            _ => Err(unneeded("hmac")),
        }
    }

    fn sign(&self, _algorithm: SigningAlgorithm, _pem: &[u8]) -> Result<Box<dyn Signer>> {
        Err(unneeded("sign"))
    }
}

impl HmacContext for Plain {
    fn update(&mut self, data: &[u8]) {
        // Gathered, for an escape may be cut in two.
        self.text.extend_from_slice(data);
    }

    fn finish(&mut self) -> Result<&[u8]> {
        let mut hmac = Hmac::<Sha256>::new_from_slice(&self.key).expect("any key length will do");
        let plain: Vec<u8> = percent_decode(&self.text).collect();
        hmac.update(&plain);
        self.signature = hmac.finalize().into_bytes().to_vec();
        Ok(&self.signature)
    }
}

fn unneeded(operation: &str) -> Error {
    Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: "the signing of addresses; sign with an account's key".to_owned(),
    }
}

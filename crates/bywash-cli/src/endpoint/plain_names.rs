//! Signing of Azure addresses for names that need percent-encoding.
//!
//! A shared access signature covers the decoded name, but object_store 0.14.2 signs the encoded one, which Azure
//! rejects. Only the name can contain percent signs in the signed text, so it is decoded here.

use hmac::{Hmac, KeyInit, Mac};
use object_store::client::{
    CryptoProvider, DigestAlgorithm, DigestContext, HmacContext, Signer, SigningAlgorithm,
};
use object_store::{Error, Result};
use percent_encoding::percent_decode;
use sha2::Sha256;

/// Signs its input after percent-decoding. Used for presigned addresses only.
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
        // Buffered, because an escape may be split.
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

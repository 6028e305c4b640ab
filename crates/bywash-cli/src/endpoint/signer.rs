//! Signers of the URLs that `bywash presign` prints.

use std::sync::Arc;

use bywash::origin::azure;
use object_store::aws::AmazonS3ConfigKey;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::signer::Signer;

use super::plain_names::PlainNames;
use super::remote::Remote;
use crate::address::{Address, Scheme};
use crate::failure::{Failure, Kind};

impl Remote {
    /// Returns the signer of URLs for an object's store. Sends no request.
    pub(crate) fn signer(&self, address: &Address) -> Result<Box<dyn Signer>, Failure> {
        let bucket = address.bucket.as_str();
        let failed = |error| Failure::store(format!("cannot sign for {address}"), &error);
        Ok(match address.scheme {
            Scheme::S3 => {
                let builder = self.builder(bucket)?;
                let skip = builder.get_config_value(&AmazonS3ConfigKey::SkipSignature);
                if skip.as_deref() == Some("true") {
                    return Err(Failure::new(
                        Kind::Denied,
                        format!(
                            "cannot sign for {address}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY \
                         (`bywash env` prints the keys of a local server), or AWS_PROFILE"
                        ),
                    ));
                }
                Box::new(builder.build().map_err(failed)?)
            }
            Scheme::Gcs => {
                let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
                Box::new(builder.build().map_err(failed)?)
            }
            Scheme::Azure => {
                let builder = azure::builder_from_env().map_err(failed)?;
                Box::new(
                    builder
                        .with_container_name(bucket)
                        .with_crypto_provider(Arc::new(PlainNames))
                        .build()
                        .map_err(failed)?,
                )
            }
            Scheme::Http | Scheme::Https => {
                return Err(Failure::usage(format!(
                    "{address} cannot be signed for; write s3://bucket/key"
                )));
            }
        })
    }
}

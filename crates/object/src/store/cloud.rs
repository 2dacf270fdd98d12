//! Buckets of clouds: the kinds of their locations, and clients for them.

use std::sync::Arc;

use object_store::ObjectStore;
#[cfg(feature = "cloud")]
use object_store::{
    ClientConfigKey, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    gcp::{GoogleCloudStorageBuilder, GoogleConfigKey},
};

#[cfg(feature = "cloud")]
use super::TRY;

/// Makes a client by a builder of `object_store`: their methods have the same names, but no trait.
/// `$endpoint` is the key of its URL.
#[cfg(feature = "cloud")]
macro_rules! client {
    ($cloud:expr, $builder:expr, $key:ident, $endpoint:ident, $settings:expr) => {{
        // Retries and time limits are ours. Otherwise a client would wait for both, one inside the
        // other.
        let limit = format!("{}s", 2 * TRY.as_secs());
        let mut builder = $builder
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .with_config($key::Client(ClientConfigKey::Timeout), limit);
        for (key, value) in $settings {
            let known = if key == "endpoint" { Ok($key::$endpoint) } else { key.parse() };
            let known = known
                .map_err(|_| format!("there is no setting '{key}' for {}", $cloud.scheme()))?;
            builder = builder.with_config(known, value);
        }
        let endpoint = builder.get_config_value(&$key::$endpoint);
        if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
            builder = builder.with_config($key::Client(ClientConfigKey::AllowHttp), "true");
        }
        Arc::new(builder.build().map_err(|error| error.to_string())?)
    }};
}

/// A protocol by which a bucket is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cloud {
    /// Amazon's, and that of all servers that speak it.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure's blobs.
    Azure,
}

impl Cloud {
    const ALL: [Self; 3] = [Self::S3, Self::Gcs, Self::Azure];

    /// Returns the cloud that a location names, and the rest of the location: bucket and prefix.
    pub(crate) fn of(location: &str) -> Option<(Self, &str)> {
        let rest = |cloud: Self| Some((cloud, location.strip_prefix(cloud.scheme())?));
        Self::ALL.into_iter().find_map(rest)
    }

    /// Returns the beginning of such a location.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3://",
            Self::Gcs => "gs://",
            Self::Azure => "az://",
        }
    }

    /// Returns a client for a bucket, by `settings` and, where they are silent, the environment.
    #[cfg(feature = "cloud")]
    pub(crate) fn client(
        self,
        bucket: &str,
        settings: &[(String, String)],
    ) -> Result<Arc<dyn ObjectStore>, String> {
        // An error: there is a provider already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(match self {
            Self::S3 => {
                let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
                client!(self, builder, AmazonS3ConfigKey, Endpoint, settings)
            }
            Self::Gcs => {
                let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
                client!(self, builder, GoogleConfigKey, BaseUrl, settings)
            }
            Self::Azure => {
                let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket);
                client!(self, builder, AzureConfigKey, Endpoint, settings)
            }
        })
    }

    #[cfg(not(feature = "cloud"))]
    pub(crate) fn client(
        self,
        _: &str,
        _: &[(String, String)],
    ) -> Result<Arc<dyn ObjectStore>, String> {
        Err("this program was built without buckets; build it with the feature 'cloud'".into())
    }
}

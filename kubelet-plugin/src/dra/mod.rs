//! The kubelet's gRPC APIs: registration, the DRA calls, and the health of devices in both of its versions.
//!
//! This layer only translates; the work is behind [`NodeResources`].

#[cfg(test)]
pub(crate) mod fixtures;
mod health;
mod registration;
mod service;

/// Generated from `proto/` by `make generate`.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod proto {
    /// `pluginregistration`
    pub(crate) mod registration {
        include!("gen/pluginregistration.rs");
    }
    /// `k8s.io.kubelet.pkg.apis.dra.v1`
    pub(crate) mod v1 {
        include!("gen/k8s.io.kubelet.pkg.apis.dra.v1.rs");
    }
    /// `v1`, of `k8s.io/kubelet/pkg/apis/dra-health`
    pub(crate) mod health_v1 {
        include!("gen/v1.rs");
    }
    /// `v1alpha1`, of the same
    pub(crate) mod health_v1alpha1 {
        include!("gen/v1alpha1.rs");
    }
}

use std::future::Future;

use health::HealthService;
pub(crate) use health::{DeviceHealth, REFRESH, Report};
use netclaim_cni::error_chain;
pub(crate) use registration::Registration;
use serde::{Deserialize, Serialize};
use service::DraService;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

/// A claim by the names that the kubelet has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClaimRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// A prepared device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PreparedDevice {
    /// The request, without the chosen alternative.
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    /// CDI devices for the containers that use the request.
    pub(crate) cdi_devices: Vec<String>,
    /// The share of the device.
    pub(crate) share_id: Option<String>,
}

/// Why a call failed for a claim, as the user reads it in the pod's event: an error with all its causes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{0}")]
#[serde(transparent)]
pub(crate) struct CallFailure(pub String);

impl CallFailure {
    /// Keeps the text of an error and of its causes.
    pub(crate) fn of(error: &dyn std::error::Error) -> Self {
        Self(error_chain(error))
    }
}

/// The calls of the kubelet. Both are idempotent by claim UID. An error is for one claim, and the user sees
/// its text in the pod's event.
pub(crate) trait NodeResources: Send + Sync + 'static {
    /// Prepares claims of one pod in this order, and returns one result for each.
    fn prepare(
        &self,
        claims: Vec<ClaimRef>,
    ) -> impl Future<Output = Vec<Result<Vec<PreparedDevice>, CallFailure>>> + Send;

    /// Releases a claim. After an error the claim and the pod stay, and the kubelet retries.
    fn unprepare(&self, claim: ClaimRef) -> impl Future<Output = Result<(), CallFailure>> + Send;

    /// Notes that the answer to a Prepare of these claims came too late: the kubelet has given the call up.
    fn was_late(&self, _claims: Vec<ClaimRef>) {}

    /// Notes that the kubelet has registered the driver (again).
    fn registered(&self) {}
}

/// Serves the DRA calls and the devices' health on `listener` until `cancel`.
///
/// # Errors
/// When the server fails.
pub(crate) async fn serve<N: NodeResources>(
    listener: UnixListener,
    node: N,
    reports: watch::Receiver<Option<Report>>,
    cancel: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let health = HealthService::new(reports, cancel.clone());
    Server::builder()
        .add_service(proto::v1::dra_plugin_server::DraPluginServer::new(DraService(node)))
        .add_service(proto::health_v1::dra_resource_health_server::DraResourceHealthServer::new(
            health.clone(),
        ))
        .add_service(proto::health_v1alpha1::dra_resource_health_server::DraResourceHealthServer::new(health))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), cancel.cancelled_owned())
        .await
}

/// Serves registration on `listener` until `cancel`.
///
/// # Errors
/// When the server fails.
pub(crate) async fn register(
    listener: UnixListener,
    registration: Registration,
    cancel: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    Server::builder()
        .add_service(proto::registration::registration_server::RegistrationServer::new(registration))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), cancel.cancelled_owned())
        .await
}

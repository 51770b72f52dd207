//! Reports the health of devices to the kubelet, which shows it in the status of their pods (KEP-4680).
//!
//! A report is valid for [`TIMEOUT`] and is repeated every [`REFRESH`]. So a device becomes `Unknown` when no
//! agent has reported for 30 s, and an agent that is replaced in less leaves no gap. The kubelet ignores a
//! report without changes.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::{Stream, StreamExt as _, future};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::proto::{health_v1, health_v1alpha1};

/// Interval of reports without a change. A kubelet forgets all devices when one of two parents of a rolling
/// update goes, and knows them again with the next report of the other.
pub(crate) const REFRESH: Duration = Duration::from_secs(5);
/// How long a report is valid: the kubelet's default, made explicit.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The health of all devices of the node.
pub(crate) type Report = Arc<[DeviceHealth]>;

/// The health of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceHealth {
    pub(crate) pool: String,
    pub(crate) device: String,
    /// Why it cannot serve; `None` when it is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unhealthy: Option<String>,
    /// Whether that stops the traffic of the pods that have it. For the agent alone.
    #[serde(skip)]
    pub(crate) stops_traffic: bool,
}

/// Serves v1 and v1alpha1, which are the same.
#[derive(Clone)]
pub(super) struct HealthService {
    reports: watch::Receiver<Option<Report>>,
    cancel: CancellationToken,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl HealthService {
    /// Streams every report until `cancel`; nothing while the health is unknown.
    pub(super) fn new(reports: watch::Receiver<Option<Report>>, cancel: CancellationToken) -> Self {
        Self { reports, cancel }
    }

    fn answers<T: Send + 'static>(&self, answer: impl Fn(&Report) -> T + Send + 'static) -> Answers<T> {
        let reports = WatchStream::new(self.reports.clone());
        let answers =
            reports.filter_map(move |report| future::ready(report.map(|report| Ok(answer(&report)))));
        Box::pin(answers.take_until(self.cancel.clone().cancelled_owned()))
    }
}

macro_rules! serve_version {
    ($version:ident) => {
        #[tonic::async_trait]
        impl $version::dra_resource_health_server::DraResourceHealth for HealthService {
            type NodeWatchResourcesStream = Answers<$version::NodeWatchResourcesResponse>;

            async fn node_watch_resources(
                &self,
                _: Request<$version::NodeWatchResourcesRequest>,
            ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
                let device = |report: &DeviceHealth| $version::DeviceHealth {
                    device: Some($version::DeviceIdentifier {
                        pool_name: report.pool.clone(),
                        device_name: report.device.clone(),
                    }),
                    health: match report.unhealthy {
                        None => $version::HealthStatus::Healthy,
                        Some(_) => $version::HealthStatus::Unhealthy,
                    }
                    .into(),
                    last_updated_time: now(),
                    health_check_timeout_seconds: seconds(TIMEOUT),
                    message: report.unhealthy.clone().unwrap_or_default(),
                };
                Ok(Response::new(self.answers(move |report| $version::NodeWatchResourcesResponse {
                    devices: report.iter().map(device).collect(),
                })))
            }
        }
    };
}

serve_version!(health_v1);
serve_version!(health_v1alpha1);

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, seconds)
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn report(unhealthy: Option<&str>) -> Option<Report> {
        let device = DeviceHealth {
            stops_traffic: false,
            pool: "node0".into(),
            device: "net-lab".into(),
            unhealthy: unhealthy.map(str::to_owned),
        };
        Some([device].into())
    }

    #[tokio::test]
    async fn the_stream_has_every_report_and_ends_with_the_service() {
        use health_v1::dra_resource_health_server::DraResourceHealth as _;
        let (reports, receiver) = watch::channel(None);
        let cancel = CancellationToken::new();
        let service = HealthService::new(receiver, cancel.clone());
        let request = Request::new(health_v1::NodeWatchResourcesRequest {});
        let mut answers = service.node_watch_resources(request).await.unwrap().into_inner();
        assert!(answers.next().now_or_never().is_none(), "the health is unknown");
        reports.send_replace(report(None));
        let healthy = answers.next().await.unwrap().unwrap().devices.remove(0);
        assert_eq!(
            (healthy.health(), healthy.health_check_timeout_seconds),
            (health_v1::HealthStatus::Healthy, 30)
        );
        assert_eq!(healthy.device.unwrap().device_name, "net-lab");
        reports.send_replace(report(Some("eth1 is down")));
        let unhealthy = answers.next().await.unwrap().unwrap().devices.remove(0);
        assert_eq!(
            (unhealthy.health(), unhealthy.message.as_str()),
            (health_v1::HealthStatus::Unhealthy, "eth1 is down")
        );
        reports.send_replace(None);
        assert!(answers.next().now_or_never().is_none(), "the health is unknown again");
        cancel.cancel();
        assert!(answers.next().await.is_none());
    }

    #[tokio::test]
    async fn an_older_kubelet_that_connects_late_gets_the_last_report() {
        use health_v1alpha1::dra_resource_health_server::DraResourceHealth as _;
        let (_reports, receiver) = watch::channel(report(Some("eth1 is down")));
        let service = HealthService::new(receiver, CancellationToken::new());
        let request = Request::new(health_v1alpha1::NodeWatchResourcesRequest {});
        let mut answers = service.node_watch_resources(request).await.unwrap().into_inner();
        assert_eq!(answers.next().await.unwrap().unwrap().devices[0].message, "eth1 is down");
    }
}

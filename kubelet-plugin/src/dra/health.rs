//! Tells the kubelet how well devices are; it shows that in the status of the pods that have them (KEP-4680).
//!
//! A report is true for [`TIMEOUT`]. Whoever makes reports says each again every [`REFRESH`], so that a device nobody
//! vouches for becomes `Unknown` by itself, and an agent that is replaced in less leaves no gap. The kubelet does
//! nothing with a report that says what it knows.

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
use crate::devices::health::in_one_line;

/// How often a report is to be made, though nothing has changed. A kubelet forgets all devices when one of two parents
/// of a rolling update goes, and knows them again with the next report of the other.
pub const REFRESH: Duration = Duration::from_secs(5);
/// How long the kubelet takes a report for true: the default, said.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What is known of all devices of the node.
pub type Report = Arc<[DeviceReport]>;

/// What is known of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub device: String,
    /// What is wrong with it; well without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Serves v1 and v1alpha1, which are the same.
#[derive(Clone)]
pub(super) struct HealthService {
    reports: watch::Receiver<Option<Report>>,
    cancel: CancellationToken,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl HealthService {
    /// Tells every report until `cancel`; none while nobody knows.
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
                let device = |report: &DeviceReport| $version::DeviceHealth {
                    device: Some($version::DeviceIdentifier {
                        pool_name: report.pool.clone(),
                        device_name: report.device.clone(),
                    }),
                    health: match report.trouble {
                        None => $version::HealthStatus::Healthy,
                        Some(_) => $version::HealthStatus::Unhealthy,
                    }
                    .into(),
                    last_updated_time: now(),
                    health_check_timeout_seconds: seconds(TIMEOUT),
                    message: report.trouble.as_deref().map(in_one_line).unwrap_or_default(),
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

    fn report(trouble: Option<&str>) -> Option<Report> {
        let device = DeviceReport {
            pool: "node0".into(),
            device: "net-lab".into(),
            trouble: trouble.map(str::to_owned),
        };
        Some([device].into())
    }

    #[tokio::test]
    async fn every_report_is_told_and_the_end_ends_the_stream() {
        use health_v1::dra_resource_health_server::DraResourceHealth as _;
        let (reports, told) = watch::channel(None);
        let cancel = CancellationToken::new();
        let service = HealthService::new(told, cancel.clone());
        let request = Request::new(health_v1::NodeWatchResourcesRequest {});
        let mut answers = service.node_watch_resources(request).await.unwrap().into_inner();
        assert!(answers.next().now_or_never().is_none(), "nobody knows");
        reports.send_replace(report(None));
        let well = answers.next().await.unwrap().unwrap().devices.remove(0);
        assert_eq!(
            (well.health(), well.health_check_timeout_seconds),
            (health_v1::HealthStatus::Healthy, 30)
        );
        assert_eq!(well.device.unwrap().device_name, "net-lab");
        reports.send_replace(report(Some("eth1 is down")));
        let ill = answers.next().await.unwrap().unwrap().devices.remove(0);
        assert_eq!(
            (ill.health(), ill.message.as_str()),
            (health_v1::HealthStatus::Unhealthy, "eth1 is down")
        );
        reports.send_replace(None);
        assert!(answers.next().now_or_never().is_none(), "nobody knows any more");
        cancel.cancel();
        assert!(answers.next().await.is_none());
    }

    #[tokio::test]
    async fn older_kubelets_and_those_that_come_late_are_told_the_same() {
        use health_v1alpha1::dra_resource_health_server::DraResourceHealth as _;
        let (_reports, told) = watch::channel(report(Some("eth1 is down")));
        let service = HealthService::new(told, CancellationToken::new());
        let request = Request::new(health_v1alpha1::NodeWatchResourcesRequest {});
        let mut answers = service.node_watch_resources(request).await.unwrap().into_inner();
        assert_eq!(answers.next().await.unwrap().unwrap().devices[0].message, "eth1 is down");
    }
}

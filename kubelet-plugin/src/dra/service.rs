//! Translates the DRA calls from and to both versions of the protocol.

use std::collections::HashMap;

use tonic::{Request, Response, Status};

use super::proto::{v1, v1beta1};
use super::{CallFailure, ClaimRef, NodeResources, PreparedDevice};

/// Serves v1 and v1beta1, which differ in the share id only.
pub(super) struct DraService<N>(pub(super) N);

impl<N: NodeResources> DraService<N> {
    async fn prepare(
        &self,
        claims: Vec<ClaimRef>,
    ) -> Vec<(String, Result<Vec<PreparedDevice>, CallFailure>)> {
        let uids: Vec<String> = claims.iter().map(|claim| claim.uid.clone()).collect();
        uids.into_iter().zip(self.0.prepare(claims).await).collect()
    }

    /// Releases the claims in parallel, because each may wait for a DEL.
    async fn unprepare(&self, claims: Vec<ClaimRef>) -> Vec<(String, String)> {
        let answers = claims.into_iter().map(|claim| async move {
            let uid = claim.uid.clone();
            (uid, self.0.unprepare(claim).await.err().map(|failure| failure.0).unwrap_or_default())
        });
        futures::future::join_all(answers).await
    }
}

macro_rules! serve_version {
    ($version:ident, $device:expr) => {
        #[tonic::async_trait]
        impl<N: NodeResources> $version::dra_plugin_server::DraPlugin for DraService<N> {
            async fn node_prepare_resources(
                &self,
                request: Request<$version::NodePrepareResourcesRequest>,
            ) -> Result<Response<$version::NodePrepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter();
                let claims =
                    claims.map(|$version::Claim { namespace, uid, name }| ClaimRef { namespace, name, uid });
                let mut answers = HashMap::new();
                for (uid, result) in self.prepare(claims.collect()).await {
                    let answer = match result {
                        Ok(devices) => $version::NodePrepareResourceResponse {
                            devices: devices.into_iter().map($device).collect(),
                            error: String::new(),
                        },
                        Err(CallFailure(error)) => {
                            $version::NodePrepareResourceResponse { devices: Vec::new(), error }
                        }
                    };
                    answers.insert(uid, answer);
                }
                Ok(Response::new($version::NodePrepareResourcesResponse { claims: answers }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$version::NodeUnprepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter();
                let claims =
                    claims.map(|$version::Claim { namespace, uid, name }| ClaimRef { namespace, name, uid });
                let answers = self.unprepare(claims.collect()).await.into_iter();
                let claims = answers
                    .map(|(uid, error)| (uid, $version::NodeUnprepareResourceResponse { error }))
                    .collect();
                Ok(Response::new($version::NodeUnprepareResourcesResponse { claims }))
            }
        }
    };
}

serve_version!(v1, |device: PreparedDevice| {
    let PreparedDevice { request, pool, device, cdi_devices, share_id } = device;
    v1::Device {
        request_names: vec![request],
        pool_name: pool,
        device_name: device,
        cdi_device_ids: cdi_devices,
        share_id,
    }
});
serve_version!(v1beta1, |device: PreparedDevice| {
    let PreparedDevice { request, pool, device, cdi_devices, share_id: _ } = device;
    v1beta1::Device {
        request_names: vec![request],
        pool_name: pool,
        device_name: device,
        cdi_device_ids: cdi_devices,
    }
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::fixtures::prepared;

    /// A fake driver, which prepares claims of the name "good".
    struct Fake;

    impl NodeResources for Fake {
        async fn prepare(&self, claims: Vec<ClaimRef>) -> Vec<Result<Vec<PreparedDevice>, CallFailure>> {
            let prepare = |claim: ClaimRef| match claim.name.as_str() {
                "good" => Ok(vec![prepared(&claim)]),
                name => Err(CallFailure(format!("{name} is not good"))),
            };
            claims.into_iter().map(prepare).collect()
        }

        async fn unprepare(&self, claim: ClaimRef) -> Result<(), CallFailure> {
            if claim.name == "good" { Ok(()) } else { Err(CallFailure("not yet".into())) }
        }
    }

    fn named(name: &str) -> v1::Claim {
        v1::Claim { namespace: "default".into(), uid: format!("{name}-uid"), name: name.into() }
    }

    #[tokio::test]
    async fn each_claim_gets_its_own_answer() {
        use v1::dra_plugin_server::DraPlugin as _;
        let service = DraService(Fake);
        let request = v1::NodePrepareResourcesRequest { claims: vec![named("good"), named("bad")] };
        let claims = service.node_prepare_resources(Request::new(request)).await.unwrap().into_inner().claims;
        assert_eq!(claims["good-uid"].devices[0].share_id.as_deref(), Some("share"));
        assert_eq!(claims["bad-uid"].error, "bad is not good");
        let request = v1::NodeUnprepareResourcesRequest { claims: vec![named("good"), named("bad")] };
        let claims =
            service.node_unprepare_resources(Request::new(request)).await.unwrap().into_inner().claims;
        assert_eq!((claims["good-uid"].error.as_str(), claims["bad-uid"].error.as_str()), ("", "not yet"));
    }

    #[tokio::test]
    async fn older_kubelets_get_devices_without_the_share() {
        use v1beta1::dra_plugin_server::DraPlugin as _;
        let claim = v1beta1::Claim { namespace: "default".into(), uid: "u".into(), name: "good".into() };
        let request = v1beta1::NodePrepareResourcesRequest { claims: vec![claim] };
        let answer =
            DraService(Fake).node_prepare_resources(Request::new(request)).await.unwrap().into_inner();
        assert_eq!(answer.claims["u"].devices[0].cdi_device_ids, ["netclaim.dev/claim=u"]);
    }
}

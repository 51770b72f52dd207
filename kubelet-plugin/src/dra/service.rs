//! Translates the DRA calls from and to the protocol.

use tonic::{Request, Response, Status};

use super::proto::v1;
use super::proto::v1::dra_plugin_server::DraPlugin;
use super::{CallFailure, ClaimRef, NodeResources, PreparedDevice};

/// Serves `v1.DRAPlugin`.
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

#[tonic::async_trait]
impl<N: NodeResources> DraPlugin for DraService<N> {
    async fn node_prepare_resources(
        &self,
        request: Request<v1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1::NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims.into_iter().map(claim_ref).collect();
        let answers = self.prepare(claims).await.into_iter().map(|(uid, result)| {
            let (devices, error) = match result {
                Ok(devices) => (devices.into_iter().map(device).collect(), String::new()),
                Err(CallFailure(error)) => (Vec::new(), error),
            };
            (uid, v1::NodePrepareResourceResponse { devices, error })
        });
        Ok(Response::new(v1::NodePrepareResourcesResponse { claims: answers.collect() }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1::NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims.into_iter().map(claim_ref).collect();
        let answers = self.unprepare(claims).await.into_iter();
        let answers = answers.map(|(uid, error)| (uid, v1::NodeUnprepareResourceResponse { error }));
        Ok(Response::new(v1::NodeUnprepareResourcesResponse { claims: answers.collect() }))
    }
}

fn claim_ref(v1::Claim { namespace, uid, name }: v1::Claim) -> ClaimRef {
    ClaimRef { namespace, name, uid }
}

fn device(PreparedDevice { request, pool, device, cdi_devices, share_id }: PreparedDevice) -> v1::Device {
    v1::Device {
        request_names: vec![request],
        pool_name: pool,
        device_name: device,
        cdi_device_ids: cdi_devices,
        share_id,
    }
}

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
}

//! The kinds of writes that [`crate::admission`] measures.

use anyhow::{Context as _, Result};
use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use netclaim_tests::Cluster;
use netclaim_tests::objects::{self, attachment};
use serde_json::{Value, json};

use crate::admission::{Send, Write};
use crate::cluster::admin;

/// Pods whose status is written.
const PODS: usize = 64;

/// Creates of each kind that the webhook looks at, and of two that it is not asked about.
pub fn that_the_webhook_knows(client: &Client) -> Result<Vec<Write>> {
    let config = || json!([attachment(json!({"interfaceName": "data0", "mac": "02:00:5e:10:00:01"}))]);
    let network = objects::network("", "macvlan", "eth0", "10.9.0.0/24");
    let policy = objects::policy("", json!({"links": {"names": ["eth0"]}}));
    let pool = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressPool", "metadata": {},
        "spec": {"ranges": [{"subnet": "10.60.0.0/20"}]}});
    let mut claim = objects::claim("", "net");
    claim["spec"]["devices"]["config"] = config();
    let mut template = objects::claim_template("", "net");
    template["spec"]["spec"] = claim["spec"].clone();
    let mut class = objects::class("", "true");
    class["spec"]["config"] = config();
    let mut of_other = claim.clone();
    of_other["spec"]["devices"]["config"][0]["opaque"]["driver"] = json!("other.example.com");
    let kinds = [
        ("a ClaimNetwork", true, network),
        ("an UplinkPolicy", true, policy),
        ("an AddressPool", true, pool),
        ("a ResourceClaim", true, claim),
        ("a ResourceClaimTemplate", true, template),
        ("a DeviceClass", true, class),
        ("another driver's claim", false, of_other),
        ("a pod", false, objects::pod("", &[])),
    ];
    let kinds = kinds.into_iter();
    kinds.map(|(title, asked, object)| Ok(Write::new(title, asked, create(client, object)?))).collect()
}

/// Writes of pods' statuses, which a policy matches, and creates of ClaimNetworks, which another one judges.
pub async fn that_policies_match(cluster: &Cluster, client: &Client) -> Result<Vec<Write>> {
    let patches = ["create", "clusterrole", "patches", "--verb=patch", "--resource=pods/status"];
    cluster.kubectl(&patches)?;
    let to = ["clusterrolebinding", "patches", "--clusterrole=patches", "--serviceaccount=default:default"];
    cluster.kubectl(&[&["create"], to.as_slice()].concat())?;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    for n in 0..PODS {
        let pod = serde_json::from_value(objects::pod(&format!("status-{n}"), &[]))?;
        pods.create(&PostParams::default(), &pod).await?;
    }
    let mut config = netclaim_process::kubernetes::config("netclaim-tests", Some(&admin(cluster))).await?;
    config.auth_info.impersonate = Some("system:serviceaccount:default:default".to_owned());
    let of_account = Api::default_namespaced(Client::try_from(config)?);
    let network = create(client, objects::network("", "macvlan", "eth0", "10.9.0.0/24"))?;
    // Kubelets are such users, who are no ServiceAccounts.
    Ok(vec![
        Write::new("a pod's status, by a user", false, patch_status(pods)),
        Write::new("a pod's status, by a ServiceAccount", false, patch_status(of_account)),
        Write::new("a ClaimNetwork", false, network),
    ])
}

/// Creates objects like this one, with other names.
fn create(client: &Client, object: Value) -> Result<Send> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let types = object.types.clone().context("the object has no kind")?;
    let is_namespaced = ["ResourceClaim", "ResourceClaimTemplate", "Pod"].contains(&types.kind.as_str());
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    let api: Api<DynamicObject> = if is_namespaced {
        Api::default_namespaced_with(client.clone(), &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    };
    // Several writes create one kind.
    let prefix = format!("w{}", fastrand::u32(..));
    Ok(Box::new(move |n| {
        let (api, mut object) = (api.clone(), object.clone());
        object.metadata.name = Some(format!("{prefix}-{n}"));
        async move { api.create(&PostParams::default(), &object).await.map(drop) }.boxed()
    }))
}

/// Changes the statuses of pods, as kubelets do.
fn patch_status(pods: Api<Pod>) -> Send {
    Box::new(move |n| {
        let pods = pods.clone();
        let status = json!({"status": {"message": format!("write {n}")}});
        let name = format!("status-{}", n % PODS);
        let patch = Patch::Strategic(status);
        async move { pods.patch_status(&name, &PatchParams::default(), &patch).await.map(drop) }.boxed()
    })
}

//! What users who are not admins may see and do.

use anyhow::{Result, ensure};
use netclaim_tests::{Test, eventually};

/// Rights that Kubernetes' roles for users do not give.
const FORBIDDEN: [(&str, &str); 14] = [
    ("create", "claimnetworks.netclaim.dev"),
    ("patch", "claimnetworks.netclaim.dev"),
    ("delete", "claimnetworks"),
    ("list", "uplinkpolicies.netclaim.dev"),
    ("create", "uplinkpolicies.netclaim.dev"),
    ("list", "addressleases.netclaim.dev"),
    ("create", "addressleases.netclaim.dev"),
    ("delete", "addressleases.netclaim.dev"),
    ("patch", "addressleases.netclaim.dev"),
    ("create", "addressblocks.netclaim.dev"),
    ("delete", "addressblocks.netclaim.dev"),
    ("create", "deviceclasses.resource.k8s.io"),
    ("create", "resourceslices.resource.k8s.io"),
    ("patch", "nodes"),
];

pub fn a_user_who_may_view_the_cluster_sees_networks_and_changes_none(test: &Test<'_>) -> Result<()> {
    let nobody = test.name("nobody");
    ensure!(
        !test.cluster.may(&nobody, &["list", "claimnetworks.netclaim.dev"]),
        "everybody may read ClaimNetworks"
    );
    for role in ["view", "edit", "admin"] {
        let user = test.name(role);
        let bind = [
            "create",
            "clusterrolebinding",
            &user,
            &format!("--clusterrole={role}"),
            &format!("--user={user}"),
        ];
        test.cluster.kubectl(&bind)?;
        let checked = check(test, &user);
        test.cluster.kubectl(&["delete", "clusterrolebinding", &user])?;
        checked?;
    }
    Ok(())
}

fn check(test: &Test<'_>, user: &str) -> Result<()> {
    // The API server takes a moment to learn of the binding.
    eventually(20, "ClaimNetworks can be read", || {
        ensure!(
            test.cluster.may(user, &["list", "claimnetworks.netclaim.dev"]),
            "{user} may not list ClaimNetworks"
        );
        Ok(())
    })?;
    for (verb, what) in FORBIDDEN {
        ensure!(!test.cluster.may(user, &[verb, what]), "{user} may {verb} {what}");
    }
    Ok(())
}

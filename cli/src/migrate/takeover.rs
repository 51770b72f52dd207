//! `netclaimctl migrate whereabouts`: leases the addresses that pods have of whereabouts, so that
//! ClaimNetworks can hand out the rest of its ranges.
//!
//! Invariants:
//! * Nothing is created while whereabouts could hand out another address. An admission policy stops it, and
//!   so what is read after it is in force is complete.
//! * What exists stays, so the command can be repeated.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use kube::Client;
use kube::api::PostParams;
use kube::core::DynamicObject;
use netclaim_cni::error_chain;
use netclaim_whereabouts::{Applied, ApplyError, Takeover, apply};
use serde_json::json;

use super::input::Input;
use super::{names, read, whereabouts};
use crate::cluster::{Connection, ReadError};
use crate::kinds::Kind;
use crate::print::failed;
use crate::printable::printable;

/// The admission policy by which an admin stops whereabouts: `deploy/whereabouts-stopped`.
const POLICY: &str = "netclaim-whereabouts-stopped";

/// `netclaimctl migrate whereabouts`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Create the AddressLeases and AddressPools; whereabouts must be stopped (kubectl apply -k
    /// deploy/whereabouts-stopped)
    #[arg(long)]
    pub apply: bool,
    /// How to print the takeover
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    /// Which cluster
    #[command(flatten)]
    pub connection: Connection,
}

/// A form of the takeover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people
    Text,
    /// Everything, for programs
    Json,
}

/// Why a takeover fails.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(
        "nothing is created, because whereabouts may still hand out addresses: stop it by the policy {POLICY} (kubectl apply -k \
         deploy/whereabouts-stopped), and run this again after some seconds"
    )]
    NotStopped,
    #[error("nothing is created, because it is not known whether whereabouts is stopped")]
    Probe(#[source] kube::Error),
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// Prints what is taken over, and with `--apply` does it. Fails if something cannot be taken over.
pub(super) async fn run(args: &Args, out: &mut (dyn Write + Send), err: &mut (dyn Write + Send)) -> ExitCode {
    let result = match args.connection.client().await {
        Ok(client) => take_over(&client, args, out).await,
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(err, error_chain(&error)),
    }
}

/// Returns whether nothing is refused.
async fn take_over(client: &Client, args: &Args, out: &mut (dyn Write + Send)) -> Result<bool, Error> {
    // What is read before it is stopped may be incomplete.
    let is_stopped = if args.apply { is_stopped(client).await.map(|()| true) } else { Ok(false) };
    let takeover = plan(client).await?;
    let mut print = |text: String| drop(out.write_all(text.as_bytes()));
    if args.output == Output::Text {
        print(Report(&takeover).to_string());
    }
    let applied = if is_stopped? { Some(apply(client, &takeover).await?) } else { None };
    match (args.output, &applied) {
        (Output::Json, _) => print(format!("{:#}\n", json!({"takeover": takeover, "applied": applied}))),
        (Output::Text, Some(Applied { leases, pools, created, .. })) => print(format!(
            "leased addresses: {leases}; AddressPools: {pools}; objects that were not there before: {created}\n"
        )),
        (Output::Text, None) => {}
    }
    Ok(takeover.unreadable.is_empty()
        && !takeover.pools.iter().any(netclaim_whereabouts::PoolTakeover::is_stopped))
}

/// Reads the cluster, and decides what is taken over. ClaimNetworks have the names that the translation gives
/// them.
async fn plan(client: &Client) -> Result<Takeover, ReadError> {
    let input = Input::of(read::objects(client).await?, "default", true);
    let names = names::networks(input.nads.keys(), &input.existing);
    Ok(whereabouts::takeover(&input, &names))
}

/// Asks whether the admission policy that stops whereabouts is in force, by a write that changes nothing.
async fn is_stopped(client: &Client) -> Result<(), Error> {
    const POOLS: Kind = Kind::new("whereabouts.cni.cncf.io/v1alpha1", "IPPool", "ippools");
    let mut probe = DynamicObject::new("netclaim-probe", &POOLS.resource());
    // For documentation.
    probe.data = json!({"spec": {"range": "192.0.2.0/32", "allocations": {}}});
    let params = PostParams { dry_run: true, ..PostParams::default() };
    match POOLS.api(client.clone(), Some("default")).create(&params, &probe).await {
        Ok(_) => Err(Error::NotStopped),
        Err(kube::Error::Api(status)) if status.message.contains(POLICY) => Ok(()),
        // There is no whereabouts.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::Probe(error)),
    }
}

/// A takeover, as people read it.
struct Report<'a>(&'a Takeover);

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Takeover { pools, unreadable, skipped, unclaimed, notes } = self.0;
        let taken = || pools.iter().filter(|pool| !pool.is_stopped());
        let leases = taken().flat_map(|pool| &pool.leases).filter_map(|(_, lease)| {
            Some(format!("{}: {}, by ClaimNetwork {}", lease.address?, lease.holder, lease.network))
        });
        let shared = taken().filter_map(|pool| {
            let networks = pool.networks.iter().map(|network| network.network.to_string());
            Some(format!(
                "{}, of the ClaimNetworks {}",
                pool.pool.as_ref()?.name,
                networks.collect::<Vec<_>>().join(", ")
            ))
        });
        let free = taken().flat_map(|pool| &pool.orphans);
        let free = free.map(|orphan| format!("{}: {}", orphan.address, orphan.podref));
        let held = taken().flat_map(|pool| &pool.held).map(ToString::to_string);
        let unclaimed = unclaimed.iter().map(|pool| {
            format!("{} with {} addresses is left out: {}", pool.pool, pool.addresses, pool.reason)
        });
        let skipped = skipped.iter().map(|error| format!("left out: {error}"));
        let notes = notes.iter().chain(pools.iter().flat_map(|pool| &pool.notes));
        let notes = notes.map(|note| format!("{}: {}: {}", note.object, note.field, note.reason));
        let problems = pools.iter().flat_map(|pool| &pool.problems).map(ToString::to_string);
        let refused: Vec<String> = unreadable.iter().map(ToString::to_string).chain(problems).collect();
        if pools.is_empty() && refused.is_empty() {
            writeln!(f, "No NetworkAttachmentDefinition has addresses of whereabouts")?;
        }
        for (heading, lines) in [
            ("LEASED, to the pods that have them", leases.collect::<Vec<_>>()),
            ("ADDRESS POOLS, which several ClaimNetworks share", shared.collect()),
            ("FREE, because their pods are not there", free.collect()),
            ("EXCLUDED, because an IPPool holds them for no pod", held.collect()),
            ("NOTES", unclaimed.chain(skipped).chain(notes).collect()),
            ("NOT TAKEN OVER", refused),
        ] {
            if lines.is_empty() {
                continue;
            }
            writeln!(f, "{heading}")?;
            lines.iter().try_for_each(|line| writeln!(f, "* {}", printable(line)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::{Arc, Mutex};

    use serde_json::Value;

    use super::*;
    use crate::mock::{api_server_of_writes, items, status};

    /// What a fake cluster has: whereabouts with addresses, and the pod shop/web-0.
    struct Fake {
        is_stopped: bool,
        allocations: Value,
        network_status: Value,
    }

    /// The addresses .3 and .6, of which one pod is there.
    fn fake(is_stopped: bool) -> Fake {
        let allocations = json!({"3": {"id": "a", "podref": "shop/web-0", "ifname": "net1"},
            "6": {"id": "b", "podref": "shop/gone"}});
        Fake { is_stopped, allocations, network_status: json!([]) }
    }

    fn answer(fake: &Fake, method: &str, uri: &str, body: &Value) -> (u16, Value) {
        if method == "POST" {
            return match uri {
                uri if uri.contains("/ippools") && fake.is_stopped => {
                    let message = format!("ValidatingAdmissionPolicy '{POLICY}' denied request");
                    (
                        403,
                        json!({"kind": "Status", "status": "Failure", "message": message, "reason": "Forbidden", "code": 403}),
                    )
                }
                _ => (201, body.clone()),
            };
        }
        let config = json!({"cniVersion": "0.3.1", "name": "lan", "type": "macvlan", "master": "eth1",
            "ipam": {"type": "whereabouts", "range": "10.60.0.0/24", "gateway": "10.60.0.1"}});
        if uri.contains("/network-attachment-definitions") {
            let metadata = json!({"namespace": "shop", "name": "lan"});
            return items([json!({"metadata": metadata, "spec": {"config": config.to_string()}})]);
        }
        if uri.contains("/ippools") {
            let metadata = json!({"namespace": "kube-system", "name": "10.60.0.0-24"});
            let spec = json!({"range": "10.60.0.0/24", "allocations": fake.allocations});
            return items([json!({"metadata": metadata, "spec": spec})]);
        }
        if uri.contains("/api/v1/pods") {
            let annotations = json!({"k8s.v1.cni.cncf.io/network-status": fake.network_status.to_string()});
            let metadata =
                json!({"namespace": "shop", "name": "web-0", "uid": "u", "annotations": annotations});
            return items([json!({"metadata": metadata})]);
        }
        status(404, "NotFound")
    }

    /// Runs the command. Returns whether it succeeds or its error, what it prints, and the objects that it
    /// creates.
    async fn run(fake: Fake, args: &[&str]) -> (Result<bool, String>, String, Vec<String>) {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let Line { args } = clap::Parser::try_parse_from(["whereabouts"].iter().chain(args)).unwrap();
        let created = Arc::new(Mutex::new(Vec::new()));
        let writes = created.clone();
        let client = api_server_of_writes(move |method, uri, body| {
            if method == "POST" && !uri.contains("dryRun") {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                writes.lock().unwrap().push(format!(
                    "{} {}",
                    text(&body["kind"]),
                    text(&body["metadata"]["name"])
                ));
            }
            answer(&fake, method, uri, body)
        });
        let mut out = Vec::new();
        let result =
            take_over(&client, &args, &mut out).await.map_err(|error| error_chain(&error).to_string());
        let created = created.lock().unwrap().clone();
        (result, String::from_utf8(out).unwrap(), created)
    }

    const SHOWN: &str = "LEASED, to the pods that have them\n\
                         * 10.60.0.3: Pod shop/web-0, by ClaimNetwork shop-lan\n\
                         FREE, because their pods are not there\n\
                         * 10.60.0.6: shop/gone\n";

    #[tokio::test]
    async fn without_apply_the_takeover_is_shown_and_nothing_is_created() {
        let (result, shown, created) = run(fake(false), &[]).await;
        assert_eq!((result, shown.as_str(), created), (Ok(true), SHOWN, Vec::new()));
    }

    #[tokio::test]
    async fn addresses_of_pods_are_leased_once_whereabouts_is_stopped() {
        let (result, shown, created) = run(fake(false), &["--apply"]).await;
        let error = result.unwrap_err();
        assert!(error.contains("kubectl apply -k deploy/whereabouts-stopped"), "{error}");
        assert_eq!((shown.as_str(), created), (SHOWN, Vec::new()));

        let (result, shown, created) = run(fake(true), &["--apply"]).await;
        assert_eq!((result, created), (Ok(true), vec!["AddressLease shop-lan.10.60.0.3".to_owned()]));
        let done = "leased addresses: 1; AddressPools: 0; objects that were not there before: 1\n";
        assert_eq!(shown, format!("{SHOWN}{done}"));
    }

    #[tokio::test]
    async fn a_pool_that_cannot_be_taken_over_makes_the_command_fail() {
        let network_status = json!([{"name": "shop/lan", "interface": "net1", "ips": ["10.60.0.9"]}]);
        let (result, shown, created) = run(Fake { network_status, ..fake(true) }, &["--apply"]).await;
        assert_eq!((result, created), (Ok(false), Vec::new()), "{shown}");
        let refusal =
            "NOT TAKEN OVER\n* pod shop/web-0 has 10.60.0.9 of NetworkAttachmentDefinition shop/lan";
        assert!(shown.starts_with(refusal), "{shown}");
    }

    #[tokio::test]
    async fn programs_get_the_takeover_and_what_was_done_as_one_document() {
        let (_, shown, _) = run(fake(true), &["--apply", "--output", "json"]).await;
        let document: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(document["takeover"]["pools"][0]["networks"][0]["network"], "shop-lan");
        assert_eq!(document["applied"], json!({"leases": 1, "pools": 0, "created": 1, "stopped": 0}));
    }
}

//! Attaches a network namespace to a network, and detaches it:
//!
//! ```text
//! ip netns add demo
//! cargo run --package netclaim-cni --example attach -- add network.conflist /run/netns/demo
//! cargo run --package netclaim-cni --example attach -- del network.conflist /run/netns/demo
//! ```
//!
//! Needs root, and the plugins in the directories of `CNI_PATH` (by default `/opt/cni/bin`).

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

use netclaim_cni::{AddOutcome, Attachment, Attachments, Cache, Cached, NetworkList, Runtime, error_chain};

const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Err(error) = run().await {
        eprintln!("{}", error_chain(&*error));
        std::process::exit(1);
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [verb, file, netns] = args.as_slice() else { return Err("usage: attach add|del FILE NETNS".into()) };

    let list = NetworkList::parse(&fs::read(file)?)?;
    // DEL finds an attachment by these two names, so both must be the same as in its ADD.
    let attachment = Attachment::new("example".parse()?, Some(netns.into()), "net1".parse()?);

    let path = env::var("CNI_PATH").unwrap_or_else(|_| "/opt/cni/bin".to_owned());
    let runtime = Runtime::new(path.split(':').map(PathBuf::from).collect())?;
    let attachments = Attachments::new(runtime, Cache::new("/run/netclaim-cni-example"));
    match verb.as_str() {
        "add" => println!("{}", attachments.add(&list, &attachment, DEADLINE).await?.raw()),
        "del" => {
            let request = Cached { list, attachment, outcome: AddOutcome::Unfinished(None) };
            attachments.del(&request, DEADLINE).await?;
        }
        other => return Err(format!("unknown verb {other:?}: use add or del").into()),
    }
    Ok(())
}

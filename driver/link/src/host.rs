//! Makes, checks and removes links.

use netclaim_plugin::Failure;

use crate::alias::{Alias, Owner};
use crate::config::{Kind, LinkSpec, Part};
use crate::kernel::{Kernel, Link, New};

// Codes of the plugin's own errors.
const TAKEN: u32 = 101;
const UNUSABLE: u32 = 102;
const DIFFERS: u32 = 103;

fn failure<T>(code: u32, problem: String) -> Result<T, Failure> {
    Err(Failure::State { code, problem })
}

fn named<'a>(links: &'a [Link], name: &str) -> Option<&'a Link> {
    links.iter().find(|link| link.name == name)
}

/// Whether the plugin made the link, as this kind and for this network.
fn is_made(link: &Link, kind: &str, network: &str) -> bool {
    link.kind == kind && link.alias.made.as_ref().is_some_and(|owner| owner.network == network)
}

/// Makes what is wanted, and returns the link that was made.
pub(crate) fn add(kernel: &mut Kernel, owner: &Owner, wanted: &LinkSpec) -> Result<Link, Failure> {
    // The remains of an earlier ADD.
    del(kernel, owner, wanted.kind.part())?;
    let links = kernel.links()?;
    let made = Alias { made: Some(owner.clone()), ..Alias::default() };
    let index = match &wanted.kind {
        Kind::Vlan { master, id } => {
            let parent = usable(&links, master)?.index;
            let same = |link: &&Link| link.vlan == Some(*id) && link.parent == Some(parent);
            if let Some(found) = named(&links, &owner.interface).or_else(|| links.iter().find(same)) {
                return taken(found);
            }
            kernel.make(New::Vlan { parent, id: *id }, &owner.interface, &made)?
        }
        Kind::Bridge { bridge, port, .. } => {
            let port = usable(&links, port)?;
            can_be_port(kernel, &links, port)?;
            let index = match named(&links, bridge) {
                Some(found) if is_made(found, "bridge", &owner.network) => found.index,
                Some(found) => return taken(found),
                None => kernel.make(New::Bridge, bridge, &made)?,
            };
            kernel.enslave(port, index, &Alias { port: Some(owner.clone()), ..port.alias.clone() })?;
            index
        }
    };
    let Some(mut link) = kernel.links()?.into_iter().find(|link| link.index == index) else {
        return failure(Failure::TRY_AGAIN, "what was made is gone: another program removed it".to_owned());
    };
    if let Some(mtu) = wanted.mtu.filter(|mtu| *mtu != link.mtu) {
        kernel.set_mtu(&link, mtu)?;
        link.mtu = mtu;
    }
    Ok(link)
}

/// Finds a link that others can be made of.
fn usable<'a>(links: &'a [Link], name: &str) -> Result<&'a Link, Failure> {
    match named(links, name) {
        Some(link) if link.is_up => Ok(link),
        Some(_) => failure(Failure::TRY_AGAIN, format!("{name} is down: set it up (ip link set {name} up)")),
        None => failure(
            Failure::TRY_AGAIN,
            format!("there is no link {name}: write the name of one that is there"),
        ),
    }
}

/// Refuses a port that another program uses.
fn can_be_port(kernel: &mut Kernel, links: &[Link], port: &Link) -> Result<(), Failure> {
    let name = &port.name;
    if let Some(owner) = &port.alias.port {
        return failure(UNUSABLE, format!("{name} is a port already, for {}: choose another", told(owner)));
    }
    if let Some(master) = port.master {
        let master = links.iter().find(|link| link.index == master).map_or("another link", |link| &link.name);
        let way = format!("choose another link, or take it out (ip link set {name} nomaster)");
        return failure(
            UNUSABLE,
            format!("{name} is in {master} already, where another program put it: {way}"),
        );
    }
    if kernel.has_address(port)? {
        let problem = format!(
            "{name} has addresses, and as a port of a bridge it would no longer serve them: the node would lose \
             its network. Choose another link, or make a VLAN on this one"
        );
        return failure(UNUSABLE, problem);
    }
    Ok(())
}

fn told(owner: &Owner) -> String {
    let Owner { network, container, interface } = owner;
    format!("the network {network} (container {container}, interface {interface})")
}

/// The error for a link that is there and is not the attachment's.
fn taken<T>(found: &Link) -> Result<T, Failure> {
    let Link { name, kind, vlan, alias, .. } = found;
    let id = vlan.map_or_else(String::new, |id| format!(" {id}"));
    let kind = if kind.is_empty() { "hardware" } else { kind };
    let whose = match &alias.made {
        Some(owner) => format!("made for {}: choose another name or id", told(owner)),
        None => {
            format!("not netclaim-link's: choose another name or id, or remove it (ip link delete {name})")
        }
    };
    failure(TAKEN, format!("{name} ({kind}{id}) is there already, {whose}"))
}

/// Removes a part of an attachment's.
pub(crate) fn del(kernel: &mut Kernel, owner: &Owner, part: Part<'_>) -> Result<(), Failure> {
    remove(kernel, &owner.network, &|other| other == owner, part)
}

/// Removes the links of those attachments of a network that are gone by `is_gone`, and its bridges without
/// a port.
pub(crate) fn remove(
    kernel: &mut Kernel,
    network: &str,
    is_gone: &dyn Fn(&Owner) -> bool,
    part: Part<'_>,
) -> Result<(), Failure> {
    let links = kernel.links()?;
    let ours = |owner: &&Owner| owner.network == network;
    let gone = |owner: &Option<Owner>| owner.as_ref().filter(ours).is_some_and(is_gone);
    if part != Part::Vlan {
        for port in links.iter().filter(|link| gone(&link.alias.port)) {
            // Another program may have put it elsewhere.
            let bridge = links.iter().find(|link| Some(link.index) == port.master);
            let is_in = bridge.is_some_and(|bridge| is_made(bridge, "bridge", network));
            kernel.release(port, is_in)?;
        }
        for bridge in links.iter().filter(|link| is_made(link, "bridge", network)) {
            let holds = |link: &Link| {
                let holder = link.alias.port.as_ref().filter(ours);
                link.master == Some(bridge.index) && holder.is_some_and(|owner| !is_gone(owner))
            };
            let asked = part == Part::Bridge(&bridge.name) || gone(&bridge.alias.made);
            if asked && !links.iter().any(holds) {
                kernel.delete(bridge)?;
            }
        }
    }
    if !matches!(part, Part::Bridge(_)) {
        for vlan in links.iter().filter(|link| link.kind == "vlan" && gone(&link.alias.made)) {
            kernel.delete(vlan)?;
        }
    }
    Ok(())
}

/// Compares what is there with what ADD made.
pub(crate) fn check(kernel: &mut Kernel, owner: &Owner, wanted: &LinkSpec) -> Result<(), Failure> {
    let links = kernel.links()?;
    let name = wanted.kind.made(owner);
    let made = named(&links, name);
    let problem = match (&wanted.kind, made) {
        (_, None) => Some("is gone".to_owned()),
        (Kind::Vlan { master, id }, Some(made)) => {
            let parent = named(&links, master).map(|parent| parent.index);
            let is_same = made.alias.made.as_ref() == Some(owner)
                && (made.vlan, made.parent) == (Some(*id), parent)
                && parent.is_some();
            (!is_same).then(|| format!("is not this attachment's VLAN {id} of {master}"))
        }
        (Kind::Bridge { port, .. }, Some(made)) => {
            let is_port = named(&links, port).is_some_and(|port| {
                port.master == Some(made.index) && port.alias.port.as_ref() == Some(owner)
            });
            let is_same = is_port && is_made(made, "bridge", &owner.network);
            (!is_same).then(|| format!("is not the network's bridge with this attachment's port {port}"))
        }
    };
    let differs = |made: &Link| match wanted.mtu {
        _ if !made.is_up => Some("is down".to_owned()),
        Some(mtu) if mtu != made.mtu => Some(format!("has the MTU {} instead of {mtu}", made.mtu)),
        _ => None,
    };
    match problem.or_else(|| made.and_then(differs)) {
        Some(problem) => failure(DIFFERS, format!("{name} {problem}: another program has changed it")),
        None => Ok(()),
    }
}

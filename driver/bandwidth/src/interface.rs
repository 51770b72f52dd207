//! Sets, checks and removes the limits of an interface.

use std::io;

use netclaim_plugin::{Failure, Requests, link};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE};
use nix::errno::Errno;
use nix::libc::{RTM_DELLINK, RTM_DELQDISC, RTM_GETLINK, RTM_GETQDISC, RTM_GETTFILTER, RTM_NEWLINK};
use nix::libc::{RTM_NEWQDISC, RTM_NEWTFILTER, RTM_SETLINK};

use crate::limits::{Bucket, Limits};
use crate::messages::{self, Link, Owner};

/// For requests that make something.
const NEW: u16 = NLM_F_CREATE | NLM_F_EXCL;
/// The code of a CHECK that finds something else than ADD made.
const DIFFERS: u32 = 101;
const REMOVE: &str = "remove its limits";

/// An interface in the calling thread's network namespace, which is the container's.
#[derive(Debug)]
pub struct Interface {
    kernel: Requests,
    link: Link,
    owner: Owner,
}

fn find(kernel: &mut Requests, action: &'static str, name: &str) -> Result<Option<Link>, Failure> {
    let found = kernel.ask(action, None, (RTM_GETLINK, 0), &link::by_name(name), &[Errno::ENODEV])?;
    Ok(found.iter().find_map(|message| Link::decode(message)))
}

/// Removes the limits of an interface of the calling thread's network namespace; it may be gone.
///
/// # Errors
/// What the kernel refused.
pub fn remove_limits(name: &str) -> Result<(), Failure> {
    remove_limits_by(&mut Requests::open(name, REMOVE)?)
}

fn remove_limits_by(kernel: &mut Requests) -> Result<(), Failure> {
    // The kernel answers with these for a qdisc that is not the plugin's.
    const NOT_OURS: &[Errno] = &[Errno::ENOENT, Errno::EINVAL];
    let name = kernel.interface().to_owned();
    let interface = find(kernel, REMOVE, &name)?;
    let ifb = find(kernel, REMOVE, &ifb_name(&name))?;
    if let Some(interface) = interface {
        for owner in Owner::ALL {
            let qdisc = messages::own_root_qdisc(interface.index, owner);
            kernel.ask(REMOVE, None, (RTM_DELQDISC, 0), &qdisc, NOT_OURS)?;
        }
        if ifb.is_some() {
            // Before the device: a filter without its device drops all received packets.
            let qdisc = messages::ingress_qdisc(interface.index);
            kernel.ask(REMOVE, None, (RTM_DELQDISC, 0), &qdisc, NOT_OURS)?;
        }
    }
    if let Some(ifb) = ifb {
        let device = link::by_index(ifb.index);
        kernel.ask(REMOVE, None, (RTM_DELLINK, 0), &device, &[Errno::ENODEV])?;
    }
    Ok(())
}

impl Interface {
    /// Finds the interface of this name.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn find(name: &str) -> Result<Option<Self>, Failure> {
        const ACTION: &str = "look it up";
        let mut kernel = Requests::open(name, ACTION)?;
        let link = find(&mut kernel, ACTION, name)?;
        Ok(link.map(|link| Self { kernel, link, owner: Owner::Plugin }))
    }

    /// Replaces the limits by these, without a trace of the earlier ones.
    ///
    /// # Errors
    /// What the kernel refused, and which module it may lack.
    pub fn limit(&mut self, limits: &Limits) -> Result<(), Failure> {
        remove_limits_by(&mut self.kernel)?;
        // What the pod has on its interface may be in the way of ingress alone.
        if let Some(limit) = limits.egress {
            self.add_bucket(self.link.index, limit.bucket(self.link.mtu), "limit egress")?;
        }
        if let Some(limit) = limits.ingress {
            let ifb = self.add_ifb()?;
            self.add_bucket(ifb, limit.bucket(self.link.mtu), "limit ingress")?;
            self.redirect(ifb)?;
        }
        Ok(())
    }

    /// Replaces the limits by these. Those that are whole only get other rates: no packet is lost, and no
    /// time passes without limits.
    pub(crate) fn adjust(&mut self, limits: &Limits, owner: Owner) -> Result<(), Failure> {
        self.owner = owner;
        let (ifb, root) = (self.redirected_to()?, self.own_bucket()?);
        if ifb.is_ok() != limits.ingress.is_some() || (root && limits.egress.is_none()) {
            return self.limit(limits);
        }
        if let (Some(limit), Ok(ifb)) = (limits.ingress, ifb) {
            self.add_bucket(ifb, limit.bucket(self.link.mtu), "limit ingress")?;
        }
        if let Some(limit) = limits.egress {
            self.add_bucket(self.link.index, limit.bucket(self.link.mtu), "limit egress")?;
        }
        Ok(())
    }

    /// Makes the device whose token bucket delays received packets. Returns its index.
    fn add_ifb(&mut self) -> Result<u32, Failure> {
        const ACTION: &str = "make an ifb device for ingress";
        const MODULE: Option<&str> = Some("ifb");
        let name = ifb_name(self.kernel.interface());
        let ifb = messages::new_ifb(&name, self.link.mtu);
        self.kernel.ask(ACTION, MODULE, (RTM_NEWLINK, NEW), &ifb, &[])?;
        let Some(Link { index: ifb, .. }) = find(&mut self.kernel, ACTION, &name)? else {
            let gone = io::Error::other("it is gone");
            return Err(Failure::kernel(self.kernel.interface(), ACTION, None, gone));
        };
        // Without an address, the device sends nothing of its own. A kernel without IPv6 refuses the setting.
        let silent = link::no_ipv6_address(ifb);
        self.kernel.ask(ACTION, None, (RTM_SETLINK, 0), &silent, &[Errno::EAFNOSUPPORT, Errno::EINVAL])?;
        let up = messages::up_with_alias(ifb, &format!("ingress of {}", self.kernel.interface()));
        self.kernel.ask(ACTION, MODULE, (RTM_SETLINK, 0), &up, &[])?;
        Ok(ifb)
    }

    /// Makes a token bucket the root qdisc of a link.
    fn add_bucket(&mut self, link: u32, bucket: Bucket, action: &'static str) -> Result<(), Failure> {
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        let qdisc = messages::token_bucket(link, self.owner, bucket);
        self.kernel.ask(action, Some("sch_tbf"), (RTM_NEWQDISC, flags), &qdisc, &[]).map(drop)
    }

    /// Redirects all received packets to the device.
    fn redirect(&mut self, ifb: u32) -> Result<(), Failure> {
        const ACTION: &str = "redirect ingress";
        let qdisc = messages::ingress_qdisc(self.link.index);
        self.kernel.ask(ACTION, Some("sch_ingress"), (RTM_NEWQDISC, NEW), &qdisc, &[])?;
        let filter = messages::redirect(self.link.index, ifb);
        let modules = Some("cls_u32 and act_mirred");
        self.kernel.ask(ACTION, modules, (RTM_NEWTFILTER, NEW), &filter, &[]).map(drop)
    }

    /// Compares the interface's limits with these. Stricter ones do not differ.
    ///
    /// # Errors
    /// What differs, or why the kernel cannot be asked.
    pub fn check(&mut self, limits: &Limits) -> Result<(), Failure> {
        if let Some(limit) = limits.egress {
            let difference = self.bucket_difference(self.link.index, limit.bucket(self.link.mtu))?;
            self.require_none("egress", difference)?;
        }
        if let Some(limit) = limits.ingress {
            let difference = self.ingress_difference(limit.bucket(self.link.mtu))?;
            self.require_none("ingress", difference)?;
        }
        Ok(())
    }

    fn require_none(&self, direction: &'static str, difference: Option<String>) -> Result<(), Failure> {
        match difference {
            Some(found) => Err(Failure::State {
                code: DIFFERS,
                problem: format!(
                    "{}: {direction} is not limited as it was: {found}; a process in the container's network \
                     namespace has changed it",
                    self.kernel.interface()
                ),
            }),
            None => Ok(()),
        }
    }

    fn ingress_difference(&mut self, bucket: Bucket) -> Result<Option<String>, Failure> {
        match self.redirected_to()? {
            Ok(ifb) => self.bucket_difference(ifb, bucket),
            Err(problem) => Ok(Some(problem)),
        }
    }

    /// Returns the index of the device to which received packets are redirected, or why none is.
    fn redirected_to(&mut self) -> Result<Result<u32, String>, Failure> {
        let name = ifb_name(self.kernel.interface());
        let Some(ifb) = find(&mut self.kernel, "look up the ifb device", &name)? else {
            return Ok(Err(format!("the device {name} is gone")));
        };
        if !ifb.is_up {
            return Ok(Err(format!("the device {name} is down")));
        }
        let filters = messages::ingress_filters(self.link.index);
        // The kernel answers with these if the interface has no ingress qdisc.
        let accepted = &[Errno::ENOENT, Errno::EINVAL];
        let request = (RTM_GETTFILTER, NLM_F_DUMP);
        let filters = self.kernel.ask("read its filters", None, request, &filters, accepted)?;
        if !filters.iter().any(|filter| messages::redirect_target(filter) == Some(ifb.index)) {
            return Ok(Err(format!("received packets are not redirected to the device {name}")));
        }
        Ok(Ok(ifb.index))
    }

    /// Whether the root qdisc is of this library.
    fn own_bucket(&mut self) -> Result<bool, Failure> {
        let found = self.root_qdisc(self.link.index)?;
        Ok(found.as_deref().is_some_and(messages::is_own))
    }

    /// How the root qdisc of a link differs from a bucket.
    fn bucket_difference(&mut self, link: u32, bucket: Bucket) -> Result<Option<String>, Failure> {
        Ok(messages::difference(self.root_qdisc(link)?.as_deref(), bucket))
    }

    fn root_qdisc(&mut self, link: u32) -> Result<Option<Vec<u8>>, Failure> {
        let qdisc = messages::root_qdisc(link);
        // Without NLM_F_ECHO the kernel sends the answer to other sockets only.
        let request = (RTM_GETQDISC, NLM_F_ECHO);
        let found = self.kernel.ask("read its qdisc", None, request, &qdisc, &[Errno::ENOENT])?;
        Ok(found.into_iter().next())
    }
}

/// Derives the name of an interface's ingress device. It has 15 characters, as many as a name may have.
fn ifb_name(interface: &str) -> String {
    // FNV-1a, 64 bits.
    let hash = interface
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("bw{:013x}", hash >> 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interface_has_a_device_name_of_its_own_that_fits() {
        let names = ["net1", "net2", "a-long-name-123", "x"].map(ifb_name);
        assert!(names.iter().all(|name| name.len() == 15), "{names:?}");
        assert!(names.iter().enumerate().all(|(i, name)| !names[..i].contains(name)), "{names:?}");
    }
}

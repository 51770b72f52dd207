//! The token buckets of an interface: made, compared and removed.

use std::io;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE};
use nix::errno::Errno;
use nix::libc::{self, RTM_DELLINK, RTM_DELQDISC, RTM_GETLINK, RTM_GETQDISC, RTM_GETTFILTER, RTM_NEWLINK};
use nix::libc::{RTM_NEWQDISC, RTM_NEWTFILTER, RTM_SETLINK};

use crate::failure::Failure;
use crate::limits::{Bucket, Limits};
use crate::rtnl::{self, Body, Rtnl, attribute, text, u32_at, u64_at};

// linux/pkt_sched.h: places of qdiscs, and the numbers ("major") that ours have there.
const ROOT: u32 = 0xffff_ffff;
const INGRESS: u32 = 0xffff_fff1;
const INGRESS_HANDLE: u32 = 0xffff_0000;
/// By it a root qdisc is known to be ours.
const OUR_HANDLE: u32 = 0x6e63_0000;

// linux/if_link.h, linux/rtnetlink.h and linux/pkt_cls.h, as far as the libc crate lacks them.
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TC_LINKLAYER_ETHERNET: u8 = 1;
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TC_U32_TERMINAL: u8 = 1;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TCA_EGRESS_REDIR: u32 = 1;
const TC_ACT_STOLEN: u32 = 4;
const ETH_P_ALL: u16 = 3;

/// sizeof(struct ifinfomsg), sizeof(struct tcmsg).
const IFINFOMSG: usize = 16;
const TCMSG: usize = 20;

/// An interface of the container, whose namespace this is called in.
#[derive(Debug)]
pub(crate) struct Interface {
    rtnl: Rtnl,
    name: String,
    link: Link,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    index: u32,
    flags: u32,
    mtu: u32,
}

/// What a failed request was to do, for the message.
struct Task<'a> {
    interface: &'a str,
    action: &'static str,
    module: Option<&'static str>,
}

impl<'a> Task<'a> {
    fn new(interface: &'a str, action: &'static str) -> Self {
        Self { interface, action, module: None }
    }

    fn failed(&self, source: io::Error) -> Failure {
        // Both mean that a kind is not known: of qdiscs, filters and actions, and of links.
        let unknown = matches!(errno(&source), Some(Errno::ENOENT | Errno::EOPNOTSUPP));
        Failure::Kernel {
            interface: self.interface.to_owned(),
            action: self.action,
            module: self.module.filter(|_| unknown),
            source,
        }
    }
}

impl Interface {
    /// The interface of this name.
    pub(crate) fn find(name: &str) -> Result<Option<Self>, Failure> {
        let task = Task::new(name, "look it up");
        let mut rtnl = Rtnl::open().map_err(|error| task.failed(error))?;
        let link = find(&mut rtnl, name).map_err(|error| task.failed(error))?;
        Ok(link.map(|link| Self { rtnl, name: name.to_owned(), link }))
    }

    /// Sets these limits, whatever was there of ours.
    pub(crate) fn limit(&mut self, limits: &Limits) -> Result<(), Failure> {
        remove_from(&mut self.rtnl, &self.name)?;
        if let Some(limit) = limits.ingress {
            let ifb = self.add_ifb()?;
            self.add_bucket(ifb, limit.bucket(self.link.mtu), "limit ingress")?;
            self.redirect(ifb)?;
        }
        if let Some(limit) = limits.egress {
            self.add_bucket(self.link.index, limit.bucket(self.link.mtu), "limit egress")?;
        }
        Ok(())
    }

    fn ask(
        &mut self,
        action: &'static str,
        module: &'static str,
        kind: u16,
        flags: u16,
        body: &Body,
    ) -> Result<(), Failure> {
        let task = Task { interface: &self.name, action, module: Some(module) };
        self.rtnl.ask(kind, flags, body.as_bytes()).map(drop).map_err(|error| task.failed(error))
    }

    /// Makes the device whose token bucket delays what the interface receives.
    fn add_ifb(&mut self) -> Result<u32, Failure> {
        const ACTION: &str = "make an ifb device for ingress";
        let name = ifb_name(&self.name);
        let body = Body::new(&ifinfomsg(0, 0, 0))
            .with_name(IFLA_IFNAME, &name)
            .with(IFLA_MTU, &self.link.mtu.to_ne_bytes())
            .with_nested(IFLA_LINKINFO, Body::default().with_name(IFLA_INFO_KIND, "ifb"));
        self.ask(ACTION, "ifb", RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &body)?;
        let task = Task::new(&self.name, ACTION);
        let gone = || task.failed(io::Error::other("it is gone"));
        let ifb = find(&mut self.rtnl, &name).map_err(|error| task.failed(error))?.ok_or_else(gone)?;
        // It is nobody's interface: no address, and so nothing of its own to send. Where IPv6 is off there is none.
        let no_address = Body::default().with(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
        let families = Body::default().with_nested(libc::AF_INET6 as u16, no_address);
        let silent = Body::new(&ifinfomsg(ifb.index, 0, 0)).with_nested(IFLA_AF_SPEC, families);
        match self.rtnl.ask(RTM_SETLINK, 0, silent.as_bytes()) {
            Err(error) if !matches!(errno(&error), Some(Errno::EAFNOSUPPORT | Errno::EINVAL)) => {
                return Err(task.failed(error));
            }
            _ => {}
        }
        let up = libc::IFF_UP as u32;
        let alias = format!("ingress of {}", self.name);
        let body = Body::new(&ifinfomsg(ifb.index, up, up)).with_name(IFLA_IFALIAS, &alias);
        self.ask(ACTION, "ifb", RTM_SETLINK, 0, &body)?;
        Ok(ifb.index)
    }

    /// Makes a token bucket the root qdisc of a link.
    fn add_bucket(&mut self, link: u32, bucket: Bucket, action: &'static str) -> Result<(), Failure> {
        // struct tc_tbf_qopt: rate and peak rate (struct tc_ratespec), limit, buffer, mtu. The rate and the buffer come
        // in attributes of their own, which hold more.
        let mut parameters = [0; 36];
        parameters[1] = TC_LINKLAYER_ETHERNET;
        parameters[8..12].copy_from_slice(&u32::try_from(bucket.rate).unwrap_or(u32::MAX).to_ne_bytes());
        parameters[24..28].copy_from_slice(&bucket.limit.to_ne_bytes());
        let options = Body::default()
            .with(TCA_TBF_PARMS, &parameters)
            .with(TCA_TBF_RATE64, &bucket.rate.to_ne_bytes())
            .with(TCA_TBF_BURST, &bucket.burst.to_ne_bytes());
        let body = Body::new(&tcmsg(link, OUR_HANDLE, ROOT, 0))
            .with_name(TCA_KIND, "tbf")
            .with_nested(TCA_OPTIONS, options);
        self.ask(action, "sch_tbf", RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &body)
    }

    /// Sends all that the interface receives, of whatever protocol, to the device.
    fn redirect(&mut self, ifb: u32) -> Result<(), Failure> {
        const ACTION: &str = "redirect ingress";
        let qdisc =
            Body::new(&tcmsg(self.link.index, INGRESS_HANDLE, INGRESS, 0)).with_name(TCA_KIND, "ingress");
        self.ask(ACTION, "sch_ingress", RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, &qdisc)?;

        // struct tc_u32_sel without a key: everything matches, be it shorter than any key.
        let mut selector = [0; 16];
        selector[0] = TC_U32_TERMINAL;
        // struct tc_mirred: index, capabilities, action, two counts; what to do, and where.
        let mut mirred = [0; 28];
        mirred[8..12].copy_from_slice(&TC_ACT_STOLEN.to_ne_bytes());
        mirred[20..24].copy_from_slice(&TCA_EGRESS_REDIR.to_ne_bytes());
        mirred[24..28].copy_from_slice(&ifb.to_ne_bytes());
        let action = Body::default()
            .with_name(TCA_ACT_KIND, "mirred")
            .with_nested(TCA_ACT_OPTIONS, Body::default().with(TCA_MIRRED_PARMS, &mirred));
        let options = Body::default()
            .with(TCA_U32_SEL, &selector)
            .with_nested(TCA_U32_ACT, Body::default().with_nested(1, action));
        let priority_and_protocol = 1 << 16 | u32::from(ETH_P_ALL.to_be());
        let filter = Body::new(&tcmsg(self.link.index, 0, INGRESS_HANDLE, priority_and_protocol))
            .with_name(TCA_KIND, "u32")
            .with_nested(TCA_OPTIONS, options);
        self.ask(ACTION, "cls_u32 and act_mirred", RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, &filter)
    }

    /// Compares what is there with these limits.
    pub(crate) fn check(&mut self, limits: &Limits) -> Result<(), Failure> {
        if let Some(limit) = limits.egress {
            let found = self.bucket_problem(self.link.index, limit.bucket(self.link.mtu))?;
            self.judge("egress", found)?;
        }
        if let Some(limit) = limits.ingress {
            let found = self.ingress_problem(limit.bucket(self.link.mtu))?;
            self.judge("ingress", found)?;
        }
        Ok(())
    }

    fn judge(&self, direction: &'static str, problem: Option<String>) -> Result<(), Failure> {
        match problem {
            Some(found) => Err(Failure::Differs { interface: self.name.clone(), direction, found }),
            None => Ok(()),
        }
    }

    fn ingress_problem(&mut self, bucket: Bucket) -> Result<Option<String>, Failure> {
        let task = Task::new(&self.name, "look up the ifb device");
        let name = ifb_name(&self.name);
        let Some(ifb) = find(&mut self.rtnl, &name).map_err(|error| task.failed(error))? else {
            return Ok(Some(format!("the device {name} is gone")));
        };
        if ifb.flags & libc::IFF_UP as u32 == 0 {
            return Ok(Some(format!("the device {name} is down")));
        }
        if !self.redirects_to(ifb.index)? {
            return Ok(Some(format!("what is received does not go to the device {name}")));
        }
        self.bucket_problem(ifb.index, bucket)
    }

    /// What is wrong with the root qdisc of a link.
    fn bucket_problem(&mut self, link: u32, bucket: Bucket) -> Result<Option<String>, Failure> {
        let request = tcmsg(link, 0, ROOT, 0);
        let task = Task::new(&self.name, "read its qdisc");
        // Without NLM_F_ECHO the kernel answers others only.
        let found = match self.rtnl.ask(RTM_GETQDISC, NLM_F_ECHO, &request) {
            Err(error) if errno(&error) == Some(Errno::ENOENT) => Vec::new(),
            found => found.map_err(|error| task.failed(error))?,
        };
        let Some(attributes) = found.first().and_then(|qdisc| qdisc.get(TCMSG..)) else {
            return Ok(Some("there is no qdisc".to_owned()));
        };
        let kind = attribute(attributes, TCA_KIND).map(text).unwrap_or_default();
        if kind != "tbf" {
            return Ok(Some(format!("the qdisc is {kind:?} instead of tbf")));
        }
        Ok(attribute(attributes, TCA_OPTIONS).and_then(|options| differs(options, bucket)))
    }

    fn redirects_to(&mut self, ifb: u32) -> Result<bool, Failure> {
        let request = tcmsg(self.link.index, 0, INGRESS_HANDLE, 0);
        let task = Task::new(&self.name, "read its filters");
        let filters = match self.rtnl.ask(RTM_GETTFILTER, NLM_F_DUMP, &request) {
            // Without an ingress qdisc.
            Err(error) if matches!(errno(&error), Some(Errno::ENOENT | Errno::EINVAL)) => Vec::new(),
            filters => filters.map_err(|error| task.failed(error))?,
        };
        let target = |filter: &Vec<u8>| {
            let options = attribute(filter.get(TCMSG..)?, TCA_OPTIONS)?;
            let action = attribute(attribute(options, TCA_U32_ACT)?, 1)?;
            u32_at(attribute(attribute(action, TCA_ACT_OPTIONS)?, TCA_MIRRED_PARMS)?, 24)
        };
        Ok(filters.iter().any(|filter| target(filter) == Some(ifb)))
    }
}

/// What of a token bucket's options is not as it should be.
fn differs(options: &[u8], bucket: Bucket) -> Option<String> {
    let parameters = attribute(options, TCA_TBF_PARMS)?;
    let rate = attribute(options, TCA_TBF_RATE64).and_then(|rate| u64_at(rate, 0));
    let rate = rate.or_else(|| u32_at(parameters, 8).map(u64::from))?;
    if rate != bucket.rate {
        return Some(format!("the rate is {rate} byte/s instead of {}", bucket.rate));
    }
    let limit = u32_at(parameters, 24)?;
    if limit != bucket.limit {
        return Some(format!("{limit} bytes may wait instead of {}", bucket.limit));
    }
    // The kernel tells the burst as the time that it takes, in ticks of 64 ns, rounded, and in 32 bits.
    let expected = u128::from(bucket.burst) * 1_000_000_000 / 64 / u128::from(bucket.rate);
    let found = u128::from(u32_at(parameters, 28)?);
    if expected < u128::from(u32::MAX) && found.abs_diff(expected) > expected / 100 + 1 {
        let bytes = found * 64 * u128::from(bucket.rate) / 1_000_000_000;
        return Some(format!("the burst is {bytes} bytes instead of {}", bucket.burst));
    }
    None
}

/// Removes what is ours of an interface, which may be gone.
pub(crate) fn remove(name: &str) -> Result<(), Failure> {
    let mut rtnl = Rtnl::open().map_err(|error| Task::new(name, "remove its limits").failed(error))?;
    remove_from(&mut rtnl, name)
}

fn remove_from(rtnl: &mut Rtnl, name: &str) -> Result<(), Failure> {
    let task = Task::new(name, "remove its limits");
    let failed = |error| task.failed(error);
    let interface = find(rtnl, name).map_err(failed)?;
    let ifb = find(rtnl, &ifb_name(name)).map_err(failed)?;
    // A qdisc that is not ours is refused with these.
    let mut remove_qdisc = |link: u32, kind: &str, handle: u32, parent: u32| {
        let body = Body::new(&tcmsg(link, handle, parent, 0)).with_name(TCA_KIND, kind);
        forgiving(rtnl.ask(RTM_DELQDISC, 0, body.as_bytes()), &[Errno::ENOENT, Errno::EINVAL])
    };
    if let Some(interface) = interface {
        remove_qdisc(interface.index, "tbf", OUR_HANDLE, ROOT).map_err(failed)?;
        if ifb.is_some() {
            // Before the device, without which all that is received would be dropped.
            remove_qdisc(interface.index, "ingress", INGRESS_HANDLE, INGRESS).map_err(failed)?;
        }
    }
    match ifb {
        Some(ifb) => {
            let gone = rtnl.ask(RTM_DELLINK, 0, &ifinfomsg(ifb.index, 0, 0));
            forgiving(gone, &[Errno::ENODEV]).map_err(failed)
        }
        None => Ok(()),
    }
}

fn forgiving(answer: io::Result<Vec<Vec<u8>>>, forgiven: &[Errno]) -> io::Result<()> {
    match answer {
        Err(error) if errno(&error).is_some_and(|errno| forgiven.contains(&errno)) => Ok(()),
        answer => answer.map(drop),
    }
}

fn find(rtnl: &mut Rtnl, name: &str) -> io::Result<Option<Link>> {
    let request = Body::new(&ifinfomsg(0, 0, 0)).with_name(IFLA_IFNAME, name);
    let found = match rtnl.ask(RTM_GETLINK, 0, request.as_bytes()) {
        Err(error) if errno(&error) == Some(Errno::ENODEV) => return Ok(None),
        found => found?,
    };
    let link = |message: &Vec<u8>| {
        let mtu = u32_at(attribute(message.get(IFINFOMSG..)?, IFLA_MTU)?, 0)?;
        Some(Link { index: u32_at(message, 4)?, flags: u32_at(message, 8)?, mtu })
    };
    Ok(found.iter().find_map(link))
}

/// The ingress device of an interface: a name that is no longer than a name may be, whatever the interface's.
pub(crate) fn ifb_name(interface: &str) -> String {
    // FNV-1a, 64 bits.
    let hash = interface
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("bw{:013x}", hash >> 12)
}

/// struct ifinfomsg: family, device type, index, flags, change mask.
fn ifinfomsg(index: u32, flags: u32, change: u32) -> [u8; IFINFOMSG] {
    let mut message = [0; IFINFOMSG];
    message[4..8].copy_from_slice(&index.to_ne_bytes());
    message[8..12].copy_from_slice(&flags.to_ne_bytes());
    message[12..].copy_from_slice(&change.to_ne_bytes());
    message
}

/// struct tcmsg: family, link, handle, parent, info.
fn tcmsg(link: u32, handle: u32, parent: u32, info: u32) -> [u8; TCMSG] {
    let mut message = [0; TCMSG];
    message[4..8].copy_from_slice(&link.to_ne_bytes());
    message[8..12].copy_from_slice(&handle.to_ne_bytes());
    message[12..16].copy_from_slice(&parent.to_ne_bytes());
    message[16..].copy_from_slice(&info.to_ne_bytes());
    message
}

fn errno(error: &io::Error) -> Option<Errno> {
    rtnl::number(error).map(Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_a_name_of_its_own_that_fits() {
        let names = ["net1", "net2", "a-long-name-123", "x"].map(ifb_name);
        assert!(names.iter().all(|name| name.len() == 15), "{names:?}");
        assert!(names.iter().enumerate().all(|(i, name)| !names[..i].contains(name)), "{names:?}");
    }

    fn options(rate: u64, limit: u32, ticks: u32) -> Vec<u8> {
        let mut parameters = [0; 36];
        parameters[8..12].copy_from_slice(&u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
        parameters[24..28].copy_from_slice(&limit.to_ne_bytes());
        parameters[28..32].copy_from_slice(&ticks.to_ne_bytes());
        let options = Body::default().with(TCA_TBF_PARMS, &parameters);
        let wide = |body: Body| body.with(TCA_TBF_RATE64, &rate.to_ne_bytes());
        let options = if rate > u64::from(u32::MAX) { wide(options) } else { options };
        options.as_bytes().to_vec()
    }

    #[test]
    fn a_bucket_is_told_from_another_by_rate_burst_and_queue() {
        let bucket = Bucket { rate: 12_500_000_000, burst: 50_000_000, limit: 362_500_000 };
        let ticks = 62_500;
        assert_eq!(differs(&options(bucket.rate, bucket.limit, ticks), bucket), None);
        assert_eq!(
            differs(&options(bucket.rate, bucket.limit, ticks - 1), bucket),
            None,
            "rounded by the kernel"
        );
        let told = |rate, limit, ticks| differs(&options(rate, limit, ticks), bucket).unwrap_or_default();
        assert_eq!(
            told(12_500_000, bucket.limit, ticks),
            "the rate is 12500000 byte/s instead of 12500000000"
        );
        assert_eq!(told(bucket.rate, 1, ticks), "1 bytes may wait instead of 362500000");
        assert_eq!(
            told(bucket.rate, bucket.limit, ticks / 2),
            "the burst is 25000000 bytes instead of 50000000"
        );
    }
}

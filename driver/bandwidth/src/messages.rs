//! The kernel's messages about links, qdiscs and filters, encoded and decoded.

use nix::libc::{self, TCA_KIND, TCA_OPTIONS};

use netclaim_plugin::link::{self, IFINFOMSG};
use netclaim_plugin::rtnl::{Body, attribute, text, u32_at, u64_at};

use crate::limits::Bucket;

// linux/pkt_sched.h: where qdiscs are attached, and the handles of the plugin's own.
const ROOT: u32 = 0xffff_ffff;
const INGRESS: u32 = 0xffff_fff1;
const INGRESS_HANDLE: u32 = 0xffff_0000;

/// For whom a root qdisc is, which its handle says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Owner {
    /// The plugin's, as configured.
    Plugin = 0x6e63_0000,
    /// A program's that shares a link out.
    Sharer = 0x6e73_0000,
}

impl Owner {
    pub(crate) const ALL: [Self; 2] = [Self::Plugin, Self::Sharer];

    const fn handle(self) -> u32 {
        self as u32
    }

    /// Whether this is its qdisc.
    fn has(self, qdisc: &[u8]) -> bool {
        u32_at(qdisc, 8) == Some(self.handle())
    }
}

// linux/pkt_cls.h, as far as the libc crate lacks them.
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

/// sizeof(struct tcmsg).
const TCMSG: usize = 20;

/// A link, as far as the plugin needs it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) is_up: bool,
    pub(crate) mtu: u32,
}

impl Link {
    /// Decodes the kernel's description of a link.
    pub(crate) fn decode(message: &[u8]) -> Option<Self> {
        let mtu = u32_at(attribute(message.get(IFINFOMSG..)?, libc::IFLA_MTU)?, 0)?;
        let is_up = u32_at(message, 8)? & libc::IFF_UP as u32 != 0;
        Some(Self { index: u32_at(message, 4)?, is_up, mtu })
    }
}

pub(crate) fn new_ifb(name: &str, mtu: u32) -> Body {
    link::by_name(name)
        .with(libc::IFLA_MTU, &mtu.to_ne_bytes())
        .with_nested(libc::IFLA_LINKINFO, Body::default().with_name(libc::IFLA_INFO_KIND, "ifb"))
}

pub(crate) fn up_with_alias(index: u32, alias: &str) -> Body {
    link::up(index).with_name(libc::IFLA_IFALIAS, alias)
}

/// A token bucket as the root qdisc of a link.
pub(crate) fn token_bucket(link: u32, owner: Owner, bucket: Bucket) -> Body {
    // struct tc_tbf_qopt: rate and peak rate (struct tc_ratespec), limit, buffer, mtu. Rate and buffer have
    // attributes of their own, which hold larger values.
    let mut parameters = [0; 36];
    parameters[1] = TC_LINKLAYER_ETHERNET;
    parameters[8..12].copy_from_slice(&u32::try_from(bucket.rate).unwrap_or(u32::MAX).to_ne_bytes());
    parameters[24..28].copy_from_slice(&bucket.limit.to_ne_bytes());
    let options = Body::default()
        .with(TCA_TBF_PARMS, &parameters)
        .with(TCA_TBF_RATE64, &bucket.rate.to_ne_bytes())
        .with(TCA_TBF_BURST, &bucket.burst.to_ne_bytes());
    own_root_qdisc(link, owner).with_nested(TCA_OPTIONS, options)
}

/// The owner's root qdisc of a link, without options.
pub(crate) fn own_root_qdisc(link: u32, owner: Owner) -> Body {
    tcmsg(link, owner.handle(), ROOT, 0).with_name(TCA_KIND, "tbf")
}

pub(crate) fn root_qdisc(link: u32) -> Body {
    tcmsg(link, 0, ROOT, 0)
}

pub(crate) fn ingress_qdisc(link: u32) -> Body {
    tcmsg(link, INGRESS_HANDLE, INGRESS, 0).with_name(TCA_KIND, "ingress")
}

pub(crate) fn ingress_filters(link: u32) -> Body {
    tcmsg(link, 0, INGRESS_HANDLE, 0)
}

/// A filter that redirects all received packets, of any protocol, to the device `ifb`.
pub(crate) fn redirect(link: u32, ifb: u32) -> Body {
    // struct tc_u32_sel without a key: matches every packet, even one shorter than any key.
    let mut selector = [0; 16];
    selector[0] = TC_U32_TERMINAL;
    // struct tc_mirred: index, capabilities, action, two counts; what to do, and the target.
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
    tcmsg(link, 0, INGRESS_HANDLE, priority_and_protocol)
        .with_name(TCA_KIND, "u32")
        .with_nested(TCA_OPTIONS, options)
}

/// The device to which a filter redirects.
pub(crate) fn redirect_target(filter: &[u8]) -> Option<u32> {
    let options = attribute(filter.get(TCMSG..)?, TCA_OPTIONS)?;
    let action = attribute(attribute(options, TCA_U32_ACT)?, 1)?;
    u32_at(attribute(attribute(action, TCA_ACT_OPTIONS)?, TCA_MIRRED_PARMS)?, 24)
}

/// Whether a qdisc is one that [`token_bucket`] makes.
pub(crate) fn is_own(qdisc: &[u8]) -> bool {
    Owner::ALL.iter().any(|owner| owner.has(qdisc))
}

/// How a qdisc differs from a token bucket with these parameters. One of a lower rate does not if it is of
/// whoever shares the link out, who is the only one to know how far it is limited further.
pub(crate) fn difference(qdisc: Option<&[u8]>, bucket: Bucket) -> Option<String> {
    let Some(attributes) = qdisc.and_then(|qdisc| qdisc.get(TCMSG..)) else {
        return Some("there is no qdisc".to_owned());
    };
    let kind = attribute(attributes, TCA_KIND).map(text).unwrap_or_default();
    if kind != "tbf" {
        return Some(format!("the qdisc is {kind:?} instead of tbf"));
    }
    let is_shared = qdisc.is_some_and(|qdisc| Owner::Sharer.has(qdisc));
    attribute(attributes, TCA_OPTIONS).and_then(|options| options_difference(options, bucket, is_shared))
}

fn options_difference(options: &[u8], bucket: Bucket, is_shared: bool) -> Option<String> {
    let parameters = attribute(options, TCA_TBF_PARMS)?;
    let rate = attribute(options, TCA_TBF_RATE64).and_then(|rate| u64_at(rate, 0));
    let rate = rate.or_else(|| u32_at(parameters, 8).map(u64::from))?;
    if is_shared && rate < bucket.rate {
        return None;
    }
    if rate != bucket.rate {
        return Some(format!("the rate is {rate} byte/s instead of {}", bucket.rate));
    }
    let limit = u32_at(parameters, 24)?;
    if limit != bucket.limit {
        return Some(format!("{limit} bytes may wait instead of {}", bucket.limit));
    }
    // The kernel reports the burst as the time that it takes, in ticks of 64 ns, rounded, and in 32 bits.
    let expected = u128::from(bucket.burst) * 1_000_000_000 / 64 / u128::from(bucket.rate);
    let found = u128::from(u32_at(parameters, 28)?);
    if expected < u128::from(u32::MAX) && found.abs_diff(expected) > expected / 100 + 1 {
        let bytes = found * 64 * u128::from(bucket.rate) / 1_000_000_000;
        return Some(format!("the burst is {bytes} bytes instead of {}", bucket.burst));
    }
    None
}

/// struct tcmsg: family, link, handle, parent, info.
fn tcmsg(link: u32, handle: u32, parent: u32, info: u32) -> Body {
    let mut message = [0; TCMSG];
    message[4..8].copy_from_slice(&link.to_ne_bytes());
    message[8..12].copy_from_slice(&handle.to_ne_bytes());
    message[12..16].copy_from_slice(&parent.to_ne_bytes());
    message[16..].copy_from_slice(&info.to_ne_bytes());
    Body::new(&message)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_bucket_differs_from_another_by_rate_burst_and_queue() {
        let bucket = Bucket { rate: 12_500_000_000, burst: 50_000_000, limit: 362_500_000 };
        let ticks = 62_500;
        let found = |rate, limit, ticks| {
            options_difference(&options(rate, limit, ticks), bucket, false).unwrap_or_default()
        };
        assert_eq!(found(bucket.rate, bucket.limit, ticks), "");
        assert_eq!(found(bucket.rate, bucket.limit, ticks - 1), "", "rounded by the kernel");
        assert_eq!(
            found(12_500_000, bucket.limit, ticks),
            "the rate is 12500000 byte/s instead of 12500000000"
        );
        assert_eq!(found(bucket.rate, 1, ticks), "1 bytes may wait instead of 362500000");
        assert_eq!(
            found(bucket.rate, bucket.limit, ticks / 2),
            "the burst is 25000000 bytes instead of 50000000"
        );
        let shared = |rate| options_difference(&options(rate, 1, 1), bucket, true);
        assert_eq!(shared(12_500_000), None, "limited further by who shares the link out");
        assert!(shared(bucket.rate + 1).is_some());
    }
}

//! Addresses that nodes lease: `leasing` decides, `blocks` carries it out, `pool_status` says how
//! AddressPools are.

pub(crate) mod blocks;
pub(crate) mod leasing;
pub(crate) mod pool_status;

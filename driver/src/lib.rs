//! What happens on a node, without Kubernetes.

pub mod attach;
pub mod cni;
pub mod links;
pub mod nri;

//! Which proxy leads to a cluster, as kubectl decides it. Pure.
//!
//! A kubeconfig's own `proxy-url` is always used. Without one, the environment says the proxy, and for which
//! hosts there is none (`golang.org/x/net/http/httpproxy`). kube reads these variables too, but compares
//! `NO_PROXY` with the proxy's host.

use std::net::IpAddr;

use http::Uri;
use ipnet::IpNet;

/// A proxy that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{from} is not the URL of a proxy: write it as http://HOST:PORT or socks5://HOST:PORT")]
pub struct InvalidProxy {
    /// The variable or field. Its value may have a password.
    from: String,
    #[source]
    source: http::uri::InvalidUri,
}

/// Returns the proxy to this cluster; `own` is the kubeconfig's.
///
/// # Errors
/// Fails if the proxy is not a URL.
pub(crate) fn proxy(
    cluster: &Uri,
    own: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, InvalidProxy> {
    if let Some(own) = own.filter(|own| !own.is_empty()) {
        return parsed("proxy-url of the kubeconfig", own).map(Some);
    }
    let names = match cluster.scheme_str() {
        Some("http") => ["HTTP_PROXY", "http_proxy"],
        _ => ["HTTPS_PROXY", "https_proxy"],
    };
    let first = |names: [&'static str; 2]| {
        let set = |name| Some((name, variable(name).filter(|value| !value.is_empty())?));
        names.into_iter().find_map(set)
    };
    let Some((name, proxy)) = first(names) else { return Ok(None) };
    let without = first(["NO_PROXY", "no_proxy"]).map(|(_, hosts)| hosts).unwrap_or_default();
    if is_direct(cluster, &without) {
        return Ok(None);
    }
    parsed(name, &proxy).map(Some)
}

fn parsed(from: &str, text: &str) -> Result<Uri, InvalidProxy> {
    let text = match text.split_once("://") {
        // kube resolves the host's name at the proxy for both.
        Some(("socks5h", rest)) => format!("socks5://{rest}"),
        Some(_) => text.to_owned(),
        None => format!("http://{text}"),
    };
    text.parse().map_err(|source| InvalidProxy { from: from.to_owned(), source })
}

/// Whether the cluster is reached without the environment's proxy.
fn is_direct(cluster: &Uri, without: &str) -> bool {
    let host = cluster.host().unwrap_or_default().to_ascii_lowercase();
    let host = unbracketed(&host);
    let default = if cluster.scheme_str() == Some("http") { 80 } else { 443 };
    let port = cluster.port_u16().unwrap_or(default);
    let ip: Option<IpAddr> = host.parse().ok();
    host == "localhost"
        || ip.is_some_and(|ip| ip.is_loopback())
        || without.split(',').any(|entry| is_named(host, ip, port, &entry.trim().to_ascii_lowercase()))
}

/// Whether an entry of `NO_PROXY` names the host: all, a network, an address, a domain with its subdomains,
/// or after `.` or `*.` only the subdomains. A port may follow.
fn is_named(host: &str, ip: Option<IpAddr>, port: u16, entry: &str) -> bool {
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return ip.is_some_and(|ip| network.contains(&ip));
    }
    let (name, only) = match entry.rsplit_once(':') {
        Some((name, digits)) if entry.parse::<IpAddr>().is_err() && !digits.ends_with(']') => {
            (name, Some(digits))
        }
        _ => (entry, None),
    };
    if only.is_some_and(|only| only.parse() != Ok(port)) {
        return false;
    }
    let name = unbracketed(name);
    if let Ok(address) = name.parse::<IpAddr>() {
        return ip == Some(address);
    }
    let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
    match name.strip_prefix('.') {
        Some(_) => host.ends_with(name),
        None => {
            !name.is_empty()
                && host.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        }
    }
}

fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(cluster: &str, own: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(found, _)| *found == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        proxy(&cluster.parse().unwrap(), own, variable).unwrap().map(|uri| uri.to_string())
    }

    #[test]
    fn no_proxy_names_hosts_as_kubectl_reads_it() {
        for (without, cluster, is_direct) in [
            ("", "https://api.example.com:6443", false),
            ("*", "https://api.example.com:6443", true),
            ("api.example.com", "https://api.example.com:6443", true),
            ("API.example.com", "https://api.EXAMPLE.com", true),
            ("example.com", "https://api.example.com:6443", true),
            ("ample.com", "https://api.example.com:6443", false),
            (".example.com", "https://api.example.com:6443", true),
            ("*.example.com", "https://api.example.com:6443", true),
            (".example.com", "https://example.com", false),
            ("*.example.com", "https://example.com", false),
            ("other.com, ,example.com,", "https://example.com", true),
            ("example.com:6443", "https://example.com:6443", true),
            ("example.com:443", "https://example.com", true),
            ("example.com:443", "https://example.com:6443", false),
            ("example.com:https", "https://example.com", false),
            ("10.0.0.0/8", "https://10.1.2.3:6443", true),
            ("10.0.0.0/8", "https://11.1.2.3:6443", false),
            ("10.0.0.0/8", "https://api.example.com", false),
            ("10.1.2.3", "https://10.1.2.3:6443", true),
            ("10.1.2.3:6443", "https://10.1.2.3:6443", true),
            ("10.1.2.3:443", "https://10.1.2.3:6443", false),
            ("fd00::1", "https://[fd00::1]:6443", true),
            ("[fd00::1]:6443", "https://[fd00::1]:6443", true),
            ("[fd00::1]", "https://[fd00::1]:6443", true),
            ("fd00::/8", "https://[fd00::1]", true),
            (",,", "https://api.example.com", false),
            ("", "https://localhost:6443", true),
            ("", "https://127.0.0.1:6443", true),
            ("", "https://[::1]:6443", true),
        ] {
            let proxy = chosen(cluster, None, &[("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", without)]);
            assert_eq!(proxy.is_none(), is_direct, "NO_PROXY={without:?} and {cluster}");
        }
    }

    #[test]
    fn a_proxy_comes_from_the_variable_of_the_clusters_scheme() {
        let variables = [("http_proxy", "plain:80"), ("https_proxy", "secure:3128"), ("HTTPS_PROXY", "")];
        assert_eq!(chosen("https://cluster", None, &variables).as_deref(), Some("http://secure:3128/"));
        assert_eq!(chosen("http://cluster", None, &variables).as_deref(), Some("http://plain:80/"));
        assert_eq!(chosen("https://cluster", None, &[]), None);
        let socks = [("HTTPS_PROXY", "socks5h://proxy:1080"), ("no_proxy", "elsewhere")];
        assert_eq!(chosen("https://cluster", None, &socks).as_deref(), Some("socks5://proxy:1080/"));
    }

    #[test]
    fn the_proxy_of_a_kubeconfig_is_always_used() {
        let variables = [("HTTPS_PROXY", "http://other:3128"), ("NO_PROXY", "*")];
        let own = Some("http://own:3128");
        assert_eq!(chosen("https://127.0.0.1:6443", own, &variables).as_deref(), Some("http://own:3128/"));
        assert_eq!(chosen("https://cluster", Some(""), &variables), None);
    }

    #[test]
    fn a_proxy_that_is_not_a_url_is_named_without_its_password() {
        let error = proxy(&"https://cluster".parse().unwrap(), Some("http://me:hunter2@a b"), |_| None);
        let error = netclaim_cni::error_chain(&error.unwrap_err());
        assert!(error.starts_with("proxy-url of the kubeconfig is not the URL"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

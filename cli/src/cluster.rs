//! Which cluster a command reads, and how.

use std::fmt::Debug;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::PathBuf;

use kube::api::ListParams;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::Status;
use kube::{Api, Client, Config};
use serde::de::DeserializeOwned;

use crate::proxy::{InvalidProxy, proxy};

/// Objects in one answer of the API server.
const PAGE: u32 = 500;

/// The flags that choose a cluster, and as whom to ask it. They are accepted before the command, too, as
/// kubectl's are.
#[derive(Debug, Default, clap::Args)]
pub struct Connection {
    /// The kubeconfig file [default: $KUBECONFIG, or ~/.kube/config; without one, in a pod, its service
    /// account]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: the current one]
    #[arg(long)]
    pub context: Option<String>,
    /// Ask as this user, or service account (system:serviceaccount:NAMESPACE:NAME)
    #[arg(long = "as", value_name = "USER")]
    pub user: Option<String>,
    /// Ask as a member of this group; needs a user. May be repeated
    #[arg(long = "as-group", value_name = "GROUP")]
    pub groups: Vec<String>,
}

/// Why a cluster cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No cluster is configured.
    #[error("cannot use the kubeconfig: see --kubeconfig and --context")]
    Kubeconfig(#[source] KubeconfigError),
    /// The proxy to the cluster cannot be used.
    #[error(transparent)]
    Proxy(#[from] InvalidProxy),
    /// A group without a user.
    #[error("--as-group needs --as: the API server takes groups only with a user")]
    GroupWithoutUser,
    /// The configuration makes no client.
    #[error("cannot connect to the cluster")]
    Client(#[source] kube::Error),
    /// The API server does not list these objects.
    #[error("cannot list {what}")]
    List {
        /// The objects.
        what: &'static str,
        /// What the API server says.
        #[source]
        source: kube::Error,
    },
    /// The API server does not return this object.
    #[error("cannot read {what}")]
    Get {
        /// The object.
        what: String,
        /// What the API server says.
        #[source]
        source: kube::Error,
    },
    /// There is no such object.
    #[error("there is no {what}: it may have been deleted, or is in another namespace (--namespace)")]
    Missing {
        /// The object.
        what: String,
    },
}

/// The API server's refusal of a request, or why it cannot be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// It has answered.
    #[error("{}", .0.message)]
    Answer(Box<Status>),
    /// It has not.
    #[error(transparent)]
    Other(kube::Error),
}

impl Refusal {
    /// Returns the code of the answer, 0 without one.
    pub(crate) fn code(&self) -> u16 {
        match self {
            Self::Answer(status) => status.code,
            Self::Other(_) => 0,
        }
    }
}

impl From<kube::Error> for Refusal {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if !status.message.is_empty() => Self::Answer(status),
            error => Self::Other(error),
        }
    }
}

impl ReadError {
    /// Whether the user lacks the right.
    pub fn is_forbidden(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_forbidden)
    }

    /// Whether the API server does not know such objects.
    pub fn is_unknown(&self) -> bool {
        self.status().is_some_and(|status| status.code == 404)
    }

    fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::List { source: kube::Error::Api(status), .. }
            | Self::Get { source: kube::Error::Api(status), .. } => Some(status),
            _ => None,
        }
    }
}

impl Connection {
    /// Adds the flags from before the command. Those after it win.
    pub(crate) fn inherit(&mut self, before: Self) {
        self.kubeconfig = self.kubeconfig.take().or(before.kubeconfig);
        self.context = self.context.take().or(before.context);
        self.user = self.user.take().or(before.user);
        self.groups.extend(before.groups);
    }

    fn impersonate(&self, auth: &mut AuthInfo) -> Result<(), ReadError> {
        if let Some(user) = &self.user {
            auth.impersonate = Some(user.clone());
        }
        if !self.groups.is_empty() {
            auth.impersonate_groups = Some(self.groups.clone());
        }
        match auth.impersonate {
            None if !self.groups.is_empty() => Err(ReadError::GroupWithoutUser),
            _ => Ok(()),
        }
    }

    /// Connects as the user of the kubeconfig.
    ///
    /// # Errors
    /// Fails without a usable kubeconfig. Whether the cluster answers is not looked at.
    pub async fn client(&self) -> Result<Client, ReadError> {
        Client::try_from(self.config().await?).map_err(ReadError::Client)
    }

    /// As [`Self::client`], but repeats no request that is answered with 503, as an agent that is not ready
    /// answers.
    ///
    /// # Errors
    /// As [`Self::client`].
    pub async fn client_without_retries(&self) -> Result<Client, ReadError> {
        let mut config = self.config().await?;
        config.default_retry = false;
        Client::try_from(config).map_err(ReadError::Client)
    }

    async fn config(&self) -> Result<Config, ReadError> {
        let read = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => {
                let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
                merged(std::env::split_paths(&listed))
                    .and_then(|merged| merged.map_or_else(Kubeconfig::read, Ok))
            }
        };
        let (mut config, own_proxy) = match read {
            // In a pod, as kubectl does. What is written but wrong is an error there, too.
            Err(error) if self.kubeconfig.is_none() && self.context.is_none() && is_missing(&error) => {
                (Config::incluster().map_err(|_| ReadError::Kubeconfig(error))?, None)
            }
            read => {
                let kubeconfig = read.map_err(ReadError::Kubeconfig)?;
                let own_proxy = own_proxy(&kubeconfig, self.context.as_deref());
                let options =
                    KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
                let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
                (config.map_err(ReadError::Kubeconfig)?, own_proxy)
            }
        };
        config.proxy_url = proxy(&config.cluster_url, own_proxy.as_deref(), |name| std::env::var(name).ok())?;
        self.impersonate(&mut config.auth_info)?;
        Ok(config)
    }
}

/// Merges the files of a list, as client-go does: one that does not exist is left out. `None` if the list is
/// empty.
///
/// # Errors
/// A file cannot be used, or none of them exists.
fn merged(paths: impl IntoIterator<Item = PathBuf>) -> Result<Option<Kubeconfig>, KubeconfigError> {
    let (mut merged, mut missing) = (None::<Kubeconfig>, None);
    for path in paths.into_iter().filter(|path| !path.as_os_str().is_empty()) {
        match Kubeconfig::read_from(path) {
            Err(error) if is_missing(&error) => missing = Some(error),
            read => merged = Some(merged.unwrap_or_default().merge(read?)?),
        }
    }
    match (merged, missing) {
        (None, Some(error)) => Err(error),
        (merged, _) => Ok(merged),
    }
}

/// The proxy that a kubeconfig gives the cluster of the context.
fn own_proxy(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let context = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == context)?;
    let cluster = &context.context.as_ref()?.cluster;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == *cluster)?;
    cluster.cluster.as_ref()?.proxy_url.clone()
}

/// Whether there is no kubeconfig.
fn is_missing(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::FindPath => true,
        KubeconfigError::ReadConfig(error, _) => error.kind() == ErrorKind::NotFound,
        _ => false,
    }
}

/// Goes on with nothing where a right is missing, and notes what is missing because of it.
///
/// # Errors
/// As `read`, for other reasons.
pub(crate) fn permitted<T: Default>(
    read: Result<T, ReadError>,
    notes: &mut Vec<String>,
    without: impl FnOnce() -> String,
) -> Result<T, ReadError> {
    match read {
        Err(error) if error.is_forbidden() => {
            notes.push(without());
            Ok(T::default())
        }
        read => read,
    }
}

/// Lists objects; `what` names them in an error.
///
/// # Errors
/// Fails with what the API server says.
pub async fn list<K: Clone + Debug + DeserializeOwned>(
    what: &'static str,
    api: Api<K>,
    params: &ListParams,
) -> Result<Vec<K>, ReadError> {
    list_kept(what, api, params, Some).await
}

/// As [`list`], but keeps what `keep` returns of each object.
///
/// # Errors
/// Fails with what the API server says.
pub async fn list_kept<K: Clone + Debug + DeserializeOwned>(
    what: &'static str,
    api: Api<K>,
    params: &ListParams,
    keep: impl Fn(K) -> Option<K>,
) -> Result<Vec<K>, ReadError> {
    fold(what, &api, params, Vec::new, |found, object| {
        found.extend(keep(object));
        ControlFlow::Continue(())
    })
    .await
}

/// Lists objects page by page and hands each to `add`, which may break off the list. Only one page is in
/// memory at a time.
///
/// If the API server forgets the list between two pages, it is read once more from the beginning, with a new
/// `begin`.
///
/// # Errors
/// Fails with what the API server says.
pub async fn fold<K: Clone + Debug + DeserializeOwned, T>(
    what: &'static str,
    api: &Api<K>,
    params: &ListParams,
    begin: impl Fn() -> T,
    mut add: impl FnMut(&mut T, K) -> ControlFlow<()>,
) -> Result<T, ReadError> {
    let (mut found, mut params, mut is_second_try) = (begin(), params.clone().limit(PAGE), false);
    loop {
        let page = match api.list(&params).await {
            Ok(page) => page,
            Err(kube::Error::Api(status))
                if status.code == 410 && params.continue_token.is_some() && !is_second_try =>
            {
                (found, params.continue_token, is_second_try) = (begin(), None, true);
                continue;
            }
            Err(source) => return Err(ReadError::List { what, source }),
        };
        for object in page.items {
            if add(&mut found, object).is_break() {
                return Ok(found);
            }
        }
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(found);
        }
    }
}

/// Reads an object; `what` names it in an error.
///
/// # Errors
/// Fails with what the API server says, and if there is no such object.
pub async fn get<K: Clone + Debug + DeserializeOwned>(
    what: String,
    api: Api<K>,
    name: &str,
) -> Result<K, ReadError> {
    match api.get_opt(name).await {
        Ok(Some(object)) => Ok(object),
        Ok(None) => Err(ReadError::Missing { what }),
        Err(source) => Err(ReadError::Get { what, source }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::Node;
    use kube::ResourceExt as _;
    use serde_json::{Value, json};

    use super::*;
    use crate::mock::{api_server, status};

    #[test]
    fn a_user_is_impersonated_with_their_groups() {
        let connection = |user: Option<&str>, groups: &[&str]| Connection {
            user: user.map(str::to_owned),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..Connection::default()
        };
        let mut auth = AuthInfo::default();
        connection(Some("jane"), &["a", "b"]).impersonate(&mut auth).unwrap();
        assert_eq!(auth.impersonate.as_deref(), Some("jane"));
        assert_eq!(auth.impersonate_groups, Some(vec!["a".to_owned(), "b".to_owned()]));
        // The kubeconfig may have the user.
        connection(None, &["c"]).impersonate(&mut auth).unwrap();
        assert_eq!(auth.impersonate_groups, Some(vec!["c".to_owned()]));
        let error = connection(None, &["a"]).impersonate(&mut AuthInfo::default()).unwrap_err();
        assert!(error.to_string().contains("--as"), "{error}");
    }

    #[test]
    fn a_file_that_is_missing_is_left_out_of_a_list_of_kubeconfigs() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for (name, context) in [("one", "a"), ("two", "b")] {
            let cluster = json!({"name": context, "cluster": {"server": format!("https://{context}")}});
            let file = json!({"kind": "Config", "apiVersion": "v1", "clusters": [cluster], "current-context": context});
            std::fs::write(path(name), file.to_string()).unwrap();
        }
        std::fs::write(path("bad"), "clusters: 7").unwrap();
        let read = |names: &[&str]| merged(names.iter().map(|name| path(name)));
        let found = read(&["missing", "one", "gone", "two"]).unwrap().unwrap();
        assert_eq!(found.current_context.as_deref(), Some("a"), "the first file wins");
        let clusters: Vec<&str> = found.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
        assert_eq!(clusters, ["a", "b"], "a context may be in a later file");
        assert!(read(&["one", "bad"]).is_err());
        assert!(is_missing(&read(&["missing", "gone"]).unwrap_err()), "then as without a kubeconfig");
        assert!(merged([PathBuf::new()]).unwrap().is_none(), "an empty entry is none");
    }

    fn page(names: &[&str], next: &str) -> (u16, Value) {
        let items: Vec<Value> = names.iter().map(|name| json!({"metadata": {"name": name}})).collect();
        (200, json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"continue": next}, "items": items}))
    }

    async fn names(client: kube::Client) -> Result<Vec<String>, ReadError> {
        let nodes = list("Nodes", Api::<Node>::all(client), &ListParams::default().labels("a=b")).await?;
        Ok(nodes.iter().map(Node::name_any).collect())
    }

    #[tokio::test]
    async fn a_list_is_read_page_by_page() {
        let client = api_server(|uri| {
            assert!(uri.contains("limit=500") && uri.contains("labelSelector=a%3Db"), "{uri}");
            if uri.contains("continue=next") { page(&["b"], "") } else { page(&["a"], "next") }
        });
        assert_eq!(names(client).await.unwrap(), ["a", "b"]);
    }

    #[tokio::test]
    async fn a_list_that_expires_is_read_once_more_from_the_beginning() {
        let expired = Arc::new(AtomicUsize::new(0));
        let count = expired.clone();
        let client = api_server(move |uri| match uri.contains("continue=next") {
            true if count.fetch_add(1, Ordering::SeqCst) == 0 => status(410, "Expired"),
            true => page(&["b"], ""),
            false => page(&["a"], "next"),
        });
        assert_eq!(names(client).await.unwrap(), ["a", "b"]);

        let client = api_server(|uri| {
            if uri.contains("continue=next") { status(410, "Expired") } else { page(&["a"], "next") }
        });
        let error = names(client).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot list Nodes");
    }

    #[tokio::test]
    async fn a_list_that_is_broken_off_reads_no_further_page() {
        let client = api_server(|uri| {
            assert!(!uri.contains("continue="), "{uri}");
            page(&["a", "b"], "next")
        });
        let (nodes, everything) = (Api::<Node>::all(client), ListParams::default());
        let first = fold("Nodes", &nodes, &everything, String::new, |name, node| {
            *name = node.name_any();
            ControlFlow::Break(())
        });
        assert_eq!(first.await.unwrap(), "a");
    }

    #[tokio::test]
    async fn a_missing_right_is_told_from_other_errors() {
        let error = names(api_server(|_| status(403, "Forbidden"))).await.unwrap_err();
        assert!(error.is_forbidden() && !error.is_unknown());
        let error = names(api_server(|_| status(404, "NotFound"))).await.unwrap_err();
        assert!(error.is_unknown() && !error.is_forbidden());
    }
}

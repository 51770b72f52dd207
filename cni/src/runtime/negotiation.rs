//! The version in which a network is used: the highest that all its plugins support.

use std::collections::BTreeSet;
use std::time::Duration;

use super::chain::Runtime;
use super::deadline::Deadline;
use super::error::{Context, Error, ErrorKind, Way};
use crate::config::{ConfError, NetworkList};
use crate::error_chain::error_chain;
use crate::names::PluginType;
use crate::request::{Request, Verb};
use crate::version::SpecVersion;

/// How long a plugin may take to answer VERSION.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

impl Runtime {
    /// Returns the versions that a plugin supports, of those that this runtime knows. Calls VERSION once for
    /// each binary, and again when the file is replaced.
    ///
    /// # Errors
    /// The binary is missing, fails, takes longer than ten seconds or gives no usable answer.
    pub async fn versions(&self, plugin: &PluginType) -> Result<BTreeSet<SpecVersion>, Error> {
        self.versions_by(plugin, Way::Either).await
    }

    async fn versions_by(&self, plugin: &PluginType, way: Way) -> Result<BTreeSet<SpecVersion>, Error> {
        let context = Context { verb: Some(Verb::Version), way, ..Context::lookup(plugin) };
        let program = self.search(&context)?;
        if let Some(versions) = self.versions.of(&program) {
            return Ok(versions);
        }
        let answer = self.exec(&context, Request::version(), Deadline::after(VERSION_TIMEOUT), None).await;
        let versions = match answer {
            Ok((reply, stderr)) => reply.versions().map_err(|kind| context.error_with(kind, stderr))?,
            // Plugins that are older than VERSION say this.
            Err(error) if error.reported().is_some_and(|e| e.msg == "unknown CNI_COMMAND: VERSION") => {
                BTreeSet::from([SpecVersion::V0_1_0])
            }
            Err(error) => return Err(error),
        };
        self.versions.insert(program, versions.clone());
        Ok(versions)
    }

    /// Returns the network in the highest version that it declares and all its plugins support, IPAM plugins
    /// included.
    ///
    /// # Errors
    /// As [`versions`](Self::versions), or [`ErrorKind::NoCommonVersion`] for the plugin after which none is
    /// left.
    pub async fn negotiate(&self, list: &NetworkList) -> Result<NetworkList, Error> {
        let mut common = list.versions().clone();
        let mut highest = list.version();
        for (plugin, way) in self.ways(list) {
            let supported = self.versions_by(plugin, way).await?;
            let left: BTreeSet<_> = common.intersection(&supported).copied().collect();
            let context = Context { network: Some(list.name().clone()), ..Context::lookup(plugin) };
            highest = *left.last().ok_or_else(|| {
                let (wanted, supported) =
                    (common.iter().copied().collect(), supported.iter().copied().collect());
                context.error(ErrorKind::NoCommonVersion { wanted, supported })
            })?;
            common = left;
        }
        if highest == list.version() {
            return Ok(list.clone());
        }
        list.pinned(highest).map_err(|error: ConfError| {
            Context::lookup(list.first_plugin().plugin_type()).error(ErrorKind::Pin(error))
        })
    }

    /// Returns the network in the version of an ADD and all later calls: as [`negotiate`](Self::negotiate),
    /// but the highest version that the network declares if a plugin's program does not answer VERSION. It
    /// says which plugins are served by daemons, if this runtime has any: see [`NetworkList::sockets`].
    ///
    /// # Errors
    /// [`ErrorKind::NoCommonVersion`], [`ErrorKind::NotFound`]; those of [a daemon](Error::is_of_daemon).
    pub async fn settle(&self, list: &NetworkList) -> Result<NetworkList, Error> {
        let no_way = |error: &Error| {
            matches!(error.kind(), ErrorKind::NoCommonVersion { .. } | ErrorKind::NotFound { .. })
                || error.is_of_daemon()
        };
        let served;
        let list = match self.served(list) {
            Some(sockets) => {
                served = list.served(sockets).map_err(|error| {
                    Context::lookup(list.first_plugin().plugin_type()).error(ErrorKind::Pin(error))
                })?;
                &served
            }
            None => list,
        };
        match self.negotiate(list).await {
            Err(error) if !no_way(&error) => {
                tracing::debug!(
                    error = error_chain(&error),
                    "a plugin does not tell its versions: using the highest"
                );
                Ok(list.clone())
            }
            settled => settled,
        }
    }
}

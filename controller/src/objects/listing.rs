//! Lists in parts.

use std::fmt::Debug;

use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;

/// Lists objects in parts.
pub(crate) async fn each<K: Clone + Debug + DeserializeOwned>(
    api: Api<K>,
    mut params: ListParams,
    mut take: impl FnMut(K),
) -> kube::Result<()> {
    loop {
        let part = api.list(&params).await?;
        part.items.into_iter().for_each(&mut take);
        match part.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

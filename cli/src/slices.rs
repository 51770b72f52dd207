//! ResourceSlices as consumers have to read them. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::ResourceSlice;

/// Returns the slices of the newest generation of each pool: older ones are being replaced.
pub(crate) fn newest(slices: &[ResourceSlice]) -> impl Iterator<Item = &ResourceSlice> {
    let mut newest: BTreeMap<&str, i64> = BTreeMap::new();
    for slice in slices {
        let pool = &slice.spec.pool;
        let generation = newest.entry(&pool.name).or_insert(pool.generation);
        *generation = pool.generation.max(*generation);
    }
    slices.iter().filter(move |slice| {
        let pool = &slice.spec.pool;
        newest.get(pool.name.as_str()) == Some(&pool.generation)
    })
}

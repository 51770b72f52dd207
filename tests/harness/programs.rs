//! Programs of others that run beside a cluster: what `tests/programs/build.sh` builds.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use crate::cluster::project;
use crate::test::Test;
use crate::wait::long;

/// The status of the script where the Go proxy does not serve the modules of a program.
const NOT_SERVED: i32 = 3;

/// Programs whose modules have other versions than those of Kubernetes, so that each compiles its libraries
/// again, for minutes: `make test` goes without them.
const SLOW: [&str; 3] = ["otelcol", "certmanager", "karpenter"];

/// Returns the path of a program, which is built where it is missing, or `None` if the Go proxy does not
/// serve its modules.
pub fn built(name: &str) -> Result<Option<PathBuf>> {
    let script = project("tests/programs/build.sh");
    let built = Command::new(&script).arg(name).stderr(Stdio::inherit()).output()?;
    if built.status.code() == Some(NOT_SERVED) {
        return Ok(None);
    }
    ensure!(built.status.success(), "{} {name} failed: see above", script.display());
    let path = PathBuf::from(String::from_utf8(built.stdout)?.trim());
    ensure!(path.is_file(), "{} {name} has built nothing", script.display());
    Ok(Some(path))
}

/// As [`built`]; skips the test without the modules, and with a slow program unless `$NETCLAIM_LONG` is set.
pub fn built_or_skipped(test: &Test<'_>, name: &str) -> Result<PathBuf> {
    if SLOW.contains(&name) && !long() {
        test.skip("its program takes minutes to build: make test-integrations")?;
    }
    let reason = format!("the Go proxy does not serve the modules of tests/programs/{name}");
    built(name)?.map_or_else(|| test.skip(&reason).map(|()| PathBuf::new()), Ok)
}

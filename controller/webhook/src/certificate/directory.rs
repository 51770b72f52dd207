//! The certificate in a folder, such as a mounted Secret of cert-manager, which is read again and again.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::{CHAIN, Certificate, KEY, Served, Unusable};

/// From one look at the files to the next. The kubelet takes up to a minute to write them.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Why the files cannot be used.
#[derive(Debug, Error)]
enum LookError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// Serves what is in the folder, until dropped. What cannot be used changes nothing.
pub(crate) async fn follow(dir: &Path, served: &Served) -> Infallible {
    let mut known = None;
    loop {
        match look(dir, &mut known).await {
            Ok(Some(certificate)) => served.serve(&certificate),
            Ok(None) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(dir = %dir.display(), error, "cannot use the webhook's certificate, will retry");
            }
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Returns the certificate if it is another one than before.
async fn look(dir: &Path, known: &mut Option<[Vec<u8>; 2]>) -> Result<Option<Certificate>, LookError> {
    let read = async |name: &str| {
        let path = dir.join(name);
        tokio::fs::read(&path).await.map_err(|source| LookError::Read { path, source })
    };
    let files = [read(CHAIN).await?, read(KEY).await?];
    if known.as_ref() == Some(&files) {
        return Ok(None);
    }
    // Between the two reads the kubelet may have replaced both files: then they do not fit, and the next look
    // finds two that do.
    let [chain, key] = &files;
    let certificate = Certificate::from_pem(chain, key)?;
    *known = Some(files);
    Ok(Some(certificate))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::super::generation::{Data, Generation};
    use super::*;

    fn write(dir: &Path, data: &Data, names: &[&str]) {
        for name in names {
            std::fs::write(dir.join(name), &data[*name].0).unwrap();
        }
    }

    #[tokio::test]
    async fn a_certificate_is_taken_when_its_files_change_and_fit() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let make = || Generation::make("example", &[], Timestamp::now()).unwrap();
        let (first, second) = (make(), make());
        let mut known = None;
        let missing = look(dir, &mut known).await.err().unwrap().to_string();
        assert!(missing.starts_with("cannot read") && missing.ends_with(CHAIN), "{missing}");
        write(dir, &first, &[CHAIN, KEY]);
        assert!(look(dir, &mut known).await.unwrap().is_some());
        assert!(look(dir, &mut known).await.unwrap().is_none(), "nothing has changed");
        write(dir, &second, &[CHAIN]);
        assert!(look(dir, &mut known).await.is_err(), "it has another key");
        write(dir, &second, &[KEY]);
        assert!(look(dir, &mut known).await.unwrap().is_some());
    }
}

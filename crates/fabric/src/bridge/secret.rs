//! The secret that both machines share.

use std::io::{self, Read};

use rdmux_runtime::file::{open_private, replace};

use crate::{FabricDir, FabricError};

/// Bytes of a generated secret, before it is encoded as hexadecimal digits.
const DRAWN: usize = 32;
/// Minimum length of a secret in bytes.
const MIN: usize = 16;
/// Maximum length of a secret in bytes.
const MAX: usize = 1024;

/// Reads the secret in a fabric's directory.
///
/// # Errors
/// [`FabricError::File`] when there is none, or it is too short.
pub(super) fn read(dir: &FabricDir) -> Result<Vec<u8>, FabricError> {
    let path = dir.secret();
    let file = |why: String| FabricError::File { path: path.clone(), why };
    let mut secret = Vec::new();
    let opened = std::fs::File::open(&path);
    opened
        .and_then(|opened| opened.take(MAX as u64 + 1).read_to_end(&mut secret))
        .map_err(|e| file(e.to_string()))?;
    check(&secret).map_err(file)
}

/// Reads the secret in a fabric's directory, or generates one if there is none.
///
/// # Errors
/// As [`read`], and those of writing.
pub(super) fn read_or_draw(dir: &FabricDir) -> Result<Vec<u8>, FabricError> {
    match std::fs::symlink_metadata(dir.secret()) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let mut drawn = [0; DRAWN];
            getrandom::fill(&mut drawn)
                .map_err(|e| FabricError::io("get random bytes from the kernel", e))?;
            let digits: String = drawn.iter().map(|byte| format!("{byte:02x}")).collect();
            keep(dir, format!("{digits}\n").as_bytes())?;
        }
        _ => {}
    }
    read(dir)
}

/// Stores a copy of another machine's secret in a fabric's directory.
///
/// # Errors
/// [`FabricError::File`] when it is too short or too long; those of writing.
pub fn keep(dir: &FabricDir, secret: &[u8]) -> Result<(), FabricError> {
    let path = dir.secret();
    check(secret).map_err(|why| FabricError::File { path: path.clone(), why })?;
    // Created first, so that the mode is 0600 from the beginning.
    drop(open_private(&path, false));
    replace(&path, secret).map_err(|e| FabricError::io(format!("write {}", path.display()), e))
}

/// Returns the significant bytes of a secret: without the end of line, which an editor may add.
fn check(secret: &[u8]) -> Result<Vec<u8>, String> {
    let secret = secret.trim_ascii();
    if (MIN..=MAX).contains(&secret.len()) {
        return Ok(secret.to_vec());
    }
    Err(format!("the secret has {} bytes; it must have {MIN} to {MAX}", secret.len()))
}

#[cfg(test)]
mod tests {
    use rdmux_runtime::UserDir;
    use rdmux_testing::temp_dir;

    use super::*;
    use crate::FabricName;

    #[test]
    fn bridge_secret_is_generated_once_with_mode_0600() {
        use std::os::unix::fs::PermissionsExt as _;
        let tmp = temp_dir();
        let user = UserDir::at(tmp.path().join("r")).unwrap();
        let dir = FabricDir::open(&user, &FabricName::default()).unwrap();
        assert!(read(&dir).is_err());
        let drawn = read_or_draw(&dir).unwrap();
        assert_eq!(drawn.len(), 2 * DRAWN);
        assert_eq!(read_or_draw(&dir).unwrap(), drawn);
        assert_eq!(std::fs::metadata(dir.secret()).unwrap().permissions().mode() & 0o777, 0o600);
        keep(&dir, b"a copy of the other one\n").unwrap();
        assert_eq!(read(&dir).unwrap(), b"a copy of the other one");
        assert!(keep(&dir, b"too short\n").is_err());
    }
}

//! Buffers as text on standard error (`umad_dump(3)`, `umad_addr_dump(3)`), and the debug level (`umad_debug(3)`).

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io::Write as _;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use super::buffer;
use crate::abi::umad::ib_mad_addr;
use crate::boundary::{Errno, code};

/// The level set by `umad_debug`. It is only remembered: `$RDMUX_LOG` controls this library's log.
static LEVEL: AtomicI32 = AtomicI32::new(0);

/// `umad_debug(3)`: sets the level to `level` unless that is negative, and returns it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_debug(level: c_int) -> c_int {
    if level >= 0 {
        LEVEL.store(level, Ordering::Relaxed);
    }
    LEVEL.load(Ordering::Relaxed)
}

/// `umad_addr_dump(3)`.
///
/// # Safety
/// `addr` is an address or NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_addr_dump(addr: *mut ib_mad_addr) {
    let _ = code(|| {
        if addr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller guarantees it.
        say(&Address(unsafe { ptr::read_unaligned(addr) }));
        Ok(())
    });
}

/// `umad_dump(3)`.
///
/// # Safety
/// `umad` is a buffer or NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_dump(umad: *mut c_void) {
    let _ = code(|| {
        // SAFETY: the caller guarantees it.
        let header = unsafe { buffer::header(umad)? };
        let (agent, status, timeout) = (header.agent_id, header.status, header.timeout_ms);
        say(&format_args!("umad_dump: agent id {agent} status {status:x} timeout {timeout}"));
        say(&Address(header.addr));
        Ok(())
    });
}

/// Writes to standard error, which the program may have closed.
fn say(what: &dyn fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

/// An address shown in host order. The P_Key index is already in it.
struct Address(ib_mad_addr);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(a) = self;
        let [qpn, qkey, flow] = [a.qpn, a.qkey, a.flow_label].map(u32::from_be);
        let lid = u16::from_be(a.lid);
        writeln!(f, "umad_addr_dump: qpn {qpn} qkey {qkey:#x} lid {lid} sl {}", a.sl)?;
        writeln!(
            f,
            "grh_present {} gid_index {} hop_limit {} traffic_class {} flow_label {flow:#x} \
             pkey_index {:#x}",
            a.grh_present, a.gid_index, a.hop_limit, a.traffic_class, a.pkey_index
        )?;
        write!(f, "Gid 0x")?;
        a.gid.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_in_host_order() {
        // SAFETY: all zeros is an address.
        let mut addr: ib_mad_addr = unsafe { std::mem::zeroed() };
        (addr.qpn, addr.qkey, addr.lid) = (1_u32.to_be(), 0x8001_0000_u32.to_be(), 18_u16.to_be());
        (addr.grh_present, addr.flow_label, addr.pkey_index) = (1, 0xab_u32.to_be(), 2);
        assert_eq!(
            Address(addr).to_string(),
            "umad_addr_dump: qpn 1 qkey 0x80010000 lid 18 sl 0\n\
             grh_present 1 gid_index 0 hop_limit 0 traffic_class 0 flow_label 0xab pkey_index 0x2\n\
             Gid 0x00000000000000000000000000000000"
        );
    }

    #[test]
    fn umad_debug_with_negative_level_only_returns_the_level() {
        assert_eq!(umad_debug(2), 2);
        assert_eq!(umad_debug(-1), 2);
        assert_eq!(umad_debug(0), 0);
    }
}

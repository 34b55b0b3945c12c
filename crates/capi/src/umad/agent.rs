//! Agents: an agent sends requests of a class and gets the answers, or gets the requests of a class and method
//! (`umad_register(3)`).

use std::ffi::{c_int, c_long};
use std::ptr;

use rdmux_subnet::umad::Registration;

use super::ports::find;
use crate::abi::umad::*;
use crate::boundary::{Errno, Result, code, guarded, negative};

/// Registers an agent. Returns its number. A vendor's class gets OpenIB's OUI.
///
/// # Safety
/// `method_mask` is a mask of 128 methods or NULL, which is an empty one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_register(
    portid: c_int,
    mgmt_class: c_int,
    mgmt_version: c_int,
    rmpp_version: u8,
    method_mask: *mut c_long,
) -> c_int {
    let asked = || {
        let class = u8::try_from(mgmt_class).map_err(|_| Errno::EINVAL)?;
        let version = u8::try_from(mgmt_version).map_err(|_| Errno::EINVAL)?;
        let [_, oui @ ..] = UMAD_OPENIB_OUI.to_be_bytes();
        // SAFETY: the caller guarantees it.
        let methods = unsafe { mask(method_mask) };
        Ok(asking(class, version, oui, methods, rmpp_version))
    };
    register(portid, asked)
}

/// Registers an agent as `umad_register` does, for a vendor's class from 0x30 to 0x4f.
///
/// # Safety
/// `oui` is three bytes or NULL; the mask as for `umad_register`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_register_oui(
    portid: c_int,
    mgmt_class: c_int,
    rmpp_version: u8,
    oui: *const [u8; 3],
    method_mask: *mut c_long,
) -> c_int {
    let asked = || {
        let class = u8::try_from(mgmt_class).ok().filter(|class| is_vendor_range_2(*class));
        let class = class.ok_or(Errno::EINVAL)?;
        // SAFETY: the caller guarantees it.
        let oui = *unsafe { oui.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: as above.
        let methods = unsafe { mask(method_mask) };
        Ok(asking(class, 1, oui, methods, rmpp_version))
    };
    register(portid, asked)
}

/// `umad_register2(3)`: returns 0, or a positive error number.
///
/// # Safety
/// `attr` is NULL or may be read and written; `agent_id` has room for the number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_register2(
    portid: c_int,
    attr: *mut umad_reg_attr,
    agent_id: *mut u32,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (attr, agent_id) = unsafe { (attr.as_mut(), agent_id.as_mut()) };
        let (attr, agent_id) = attr.zip(agent_id).ok_or(Errno::EINVAL)?;
        let port = find(portid).map_err(|_| Errno(libc::EBADF))?;
        if attr.flags & !Registration::FLAGS != 0 {
            attr.flags = Registration::FLAGS;
            return Err(Errno::EINVAL);
        }
        *agent_id = port.register(&registration(attr)?)?;
        Ok(())
    })
}

/// Returns the registration for the device. The OUI matters for vendors' classes only.
fn asking(class: u8, version: u8, oui: [u8; 3], methods: u128, rmpp_version: u8) -> Registration {
    let subnet = [UMAD_CLASS_SUBN_LID_ROUTED, UMAD_CLASS_SUBN_DIRECTED_ROUTE].contains(&class);
    Registration {
        qpn: u32::from(!subnet),
        class,
        class_version: version,
        oui: if is_vendor_range_2(class) { oui } else { [0; 3] },
        methods,
        rmpp_version,
        flags: 0,
    }
}

fn registration(attr: &umad_reg_attr) -> Result<Registration> {
    let [high, oui @ ..] = attr.oui.to_be_bytes();
    let class = attr.mgmt_class;
    if is_vendor_range_2(class) && high != 0 {
        return Err(Errno::EINVAL);
    }
    let [low, upper] = attr.method_mask.map(u128::from);
    let methods = low | upper << 64;
    let asked = asking(class, attr.mgmt_class_version, oui, methods, attr.rmpp_version);
    Ok(Registration { flags: attr.flags, ..asked })
}

/// `umad_unregister(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_unregister(portid: c_int, agentid: c_int) -> c_int {
    negative(|| {
        let agent = u32::try_from(agentid).map_err(|_| Errno::EINVAL)?;
        find(portid)?.unregister(agent).map(|()| 0)
    })
}

/// Registers an agent. EINVAL for invalid arguments, EPERM if the device refuses; errno has the device's reason.
fn register(portid: c_int, asked: impl FnOnce() -> Result<Registration>) -> c_int {
    let checked = guarded(|| Ok((find(portid)?, asked()?)));
    let (port, registration) = match checked {
        Ok(checked) => checked,
        Err(errno) => return negative(|| Err(errno)),
    };
    match guarded(|| port.register(&registration)) {
        // Every agent's number fits a `c_int`.
        Ok(agent) => agent.cast_signed(),
        Err(errno) => {
            errno.set();
            -libc::EPERM
        }
    }
}

fn is_vendor_range_2(class: u8) -> bool {
    (UMAD_CLASS_VENDOR_RANGE2_START..=UMAD_CLASS_VENDOR_RANGE2_END).contains(&class)
}

/// Returns a program's method mask; 0 for NULL.
///
/// # Safety
/// `methods` is 16 bytes or NULL.
unsafe fn mask(methods: *const c_long) -> u128 {
    if methods.is_null() {
        return 0;
    }
    // SAFETY: the caller guarantees it.
    unsafe { ptr::read_unaligned(methods.cast()) }
}

#[cfg(test)]
mod tests {
    use super::super::fake::open;
    use super::*;

    const NONE: *mut c_long = ptr::null_mut();
    static OUI: [u8; 3] = [1, 2, 3];

    #[test]
    fn umad_register_arguments_reach_the_device() {
        let (port, fake) = open();
        let mut mask: [c_long; 2] = [0b110, 1 << 18];
        // SAFETY: masks and vendors.
        unsafe {
            assert_eq!(umad_register(port, 3, 2, 1, mask.as_mut_ptr()), 0);
            assert_eq!(umad_register(port, 0x32, 1, 0, NONE), 1);
            assert_eq!(umad_register_oui(port, 0x32, 1, &raw const OUI, NONE), 2);
            assert_eq!(umad_register(port, 0x81, 1, 0, NONE), 3);
        }
        let sa = Registration {
            qpn: 1,
            class: 3,
            class_version: 2,
            oui: [0; 3],
            methods: 0b110 | 1 << (64 + 18),
            rmpp_version: 1,
            flags: 0,
        };
        let none =
            Registration { class: 0x32, class_version: 1, methods: 0, rmpp_version: 0, ..sa };
        let openib = Registration { oui: [0, 0x14, 5], ..none };
        let vendor = Registration { oui: OUI, rmpp_version: 1, ..none };
        let subnet = Registration { qpn: 0, class: 0x81, ..none };
        assert_eq!(fake.registered(), [sa, openib, vendor, subnet]);
        assert_eq!((umad_unregister(port, 1), umad_unregister(port, 1)), (0, -libc::EINVAL));
        assert_eq!(umad_unregister(port, -1), -libc::EINVAL);
    }

    #[test]
    fn umad_register_refused_by_device_is_eperm_with_errno_of_the_cause() {
        let (port, fake) = open();
        fake.refuse(libc::ENOMEM);
        // SAFETY: no mask.
        let result = unsafe { umad_register(port, 1, 1, 0, NONE) };
        assert_eq!((result, Errno::last()), (-libc::EPERM, Errno::ENOMEM));
        // SAFETY: as above.
        unsafe {
            assert_eq!(umad_register(port, 256, 1, 0, NONE), -libc::EINVAL);
            assert_eq!(umad_register(port, -1, 1, 0, NONE), -libc::EINVAL);
            assert_eq!(umad_register(-1, 1, 1, 0, NONE), -libc::EINVAL);
            for class in [0x2f, 0x50, 3, 0x132] {
                let result = umad_register_oui(port, class, 0, &raw const OUI, NONE);
                assert_eq!(result, -libc::EINVAL, "{class:#x}");
            }
            assert_eq!(umad_register_oui(port, 0x30, 0, ptr::null(), NONE), -libc::EINVAL);
        }
        assert!(fake.registered().is_empty());
    }

    #[test]
    fn register2_returns_positive_errors_and_tells_flags() {
        let (port, fake) = open();
        let mut attr = umad_reg_attr {
            mgmt_class: 0x30,
            mgmt_class_version: 1,
            flags: UMAD_USER_RMPP,
            method_mask: [2, 0],
            oui: 0x0102_0304,
            rmpp_version: 1,
        };
        let mut agent = 99;
        // SAFETY: attributes and room for a number.
        let mut register =
            |attr: &mut umad_reg_attr| unsafe { umad_register2(port, attr, &raw mut agent) };
        assert_eq!(register(&mut attr), libc::EINVAL, "a vendor of 32 bits");
        attr.oui = 0x02_0304;
        assert_eq!(register(&mut attr), 0);
        attr.flags = 6;
        assert_eq!((register(&mut attr), attr.flags), (libc::EINVAL, UMAD_USER_RMPP));
        attr.flags = 0;
        assert_eq!((register(&mut attr), agent), (0, 1));
        let flags: Vec<u32> = fake.registered().iter().map(|r| r.flags).collect();
        assert_eq!(flags, [UMAD_USER_RMPP, 0]);
        assert_eq!((fake.registered()[0].oui, fake.registered()[0].methods), ([2, 3, 4], 2));
        // SAFETY: as above.
        unsafe {
            assert_eq!(umad_register2(port, ptr::null_mut(), &raw mut agent), libc::EINVAL);
            assert_eq!(umad_register2(port, &raw mut attr, ptr::null_mut()), libc::EINVAL);
            assert_eq!(umad_register2(-1, &raw mut attr, &raw mut agent), libc::EBADF);
        }
    }
}

//! VendorDiag: a vendor's diagnostics (IBTA 14.2.5.14). The modifier is an index.

use crate::layout::layout;

layout! {
    /// A page of a vendor's diagnostics.
    VendorDiag("VendorDiag", 64) {
        /// The modifier of the next page; 0 after the last.
        next_index: u16 = 0;
        /// The vendor's data.
        data: [u8; 62] = 2;
    }
}

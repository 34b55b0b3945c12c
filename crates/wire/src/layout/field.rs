//! The types of a table's fields, and their positions.

use core::fmt;

use super::Visit;
use crate::bytes::{get, put};
use crate::{Gid, Guid, Lid, Mkey, Pkey, Qkey, Qpn, ServiceId, SmKey};

/// A run of bits, counted from the most significant one of the first byte, as in the specification.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    first: usize,
    len: usize,
}

impl Span {
    /// Returns the span of `len` bits from byte `at` on.
    pub(crate) const fn whole(at: usize, len: usize) -> Self {
        Self { first: at * 8, len }
    }

    /// Returns the span of `len` bits that starts at bit `first` of this span.
    pub(crate) const fn bits(self, first: usize, len: usize) -> Self {
        Self { first: self.first + first, len }
    }

    /// Returns the first byte of a span that begins at a byte boundary.
    pub(crate) const fn byte(self) -> usize {
        self.first / 8
    }

    /// Returns the `index`-th of consecutive spans of `len` bits.
    const fn nth(self, index: usize, len: usize) -> Self {
        self.bits(index * len, len)
    }

    const fn end(self) -> usize {
        self.first + self.len
    }

    /// Returns this span, relative to `whole`, as an absolute span.
    const fn within(self, whole: Self) -> Self {
        Self { first: whole.first + self.first, len: self.len }
    }

    /// Copies the bits of the span from `value` to `out`.
    pub(crate) fn copy(self, value: &[u8], out: &mut [u8]) {
        let (first, last) = (self.byte(), (self.end() - 1) / 8);
        for at in first..=last {
            let head = if at == first { 0xff >> (self.first % 8) } else { 0xff };
            let tail = if at == last { 0xff << self.below() } else { 0xff };
            let bits = head & tail;
            out[at] = out[at] & !bits | value[at] & bits;
        }
    }

    /// Returns the number of bits of the last byte after the span.
    const fn below(self) -> usize {
        (8 - self.end() % 8) % 8
    }
}

/// Fails to compile when a table has a hole, an overlap or another length than declared.
pub(crate) const fn assert_covers(spans: &[Span], len: usize) {
    let mut at = 0;
    let mut i = 0;
    while i < spans.len() {
        assert!(spans[i].first == at, "a field does not start where the one before it ends");
        at = spans[i].end();
        i += 1;
    }
    assert!(at == len * 8, "the fields do not fill the length");
}

/// A named field of a table: its position and its structure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) span: Span,
    /// The width of an element for an array, otherwise the width of the field.
    pub(crate) element: usize,
    /// The fields of a nested layout.
    pub(crate) parts: &'static [Part],
}

/// Returns the span of a field by its path, such as `lid`, `port_info.lmc` or `service_data8[3]`.
/// For constants: an unknown path does not compile.
pub(crate) const fn span_of(parts: &[Part], path: &str) -> Span {
    let path = path.as_bytes();
    let end = name_end(path, 0);
    let mut i = 0;
    while i < parts.len() {
        let part = parts[i];
        if is_name(part.name.as_bytes(), path, end) {
            if end == path.len() {
                return part.span;
            }
            if path[end] == b'[' {
                let (index, end) = index_at(path, end);
                assert!(end == path.len(), "there is something after an index");
                return part.span.nth(index, part.element);
            }
            let (_, rest) = path.split_at(end + 1);
            let Ok(rest) = core::str::from_utf8(rest) else { panic!("not a path") };
            return span_of(part.parts, rest).within(part.span);
        }
        i += 1;
    }
    panic!("there is no such field")
}

const fn name_end(path: &[u8], from: usize) -> usize {
    let mut end = from;
    while end < path.len() && path[end] != b'.' && path[end] != b'[' {
        end += 1;
    }
    end
}

const fn is_name(name: &[u8], path: &[u8], end: usize) -> bool {
    if name.len() != end {
        return false;
    }
    let mut i = 0;
    while i < end {
        if name[i] != path[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Returns the number in brackets at `open`, and its end.
const fn index_at(path: &[u8], open: usize) -> (usize, usize) {
    let (mut at, mut index) = (open + 1, 0);
    while path[at] != b']' {
        index = index * 10 + (path[at] - b'0') as usize;
        at += 1;
    }
    (index, at + 1)
}

/// The type of a field.
pub(crate) trait Field: Sized {
    /// The width when the table does not declare one.
    const BITS: usize;
    /// The width of an array's element; otherwise that of the field.
    const ELEMENT_BITS: usize = Self::BITS;
    /// The fields of a nested layout.
    const PARTS: &'static [Part] = &[];
    fn take(b: &[u8], span: Span) -> Self;
    fn store(&self, b: &mut [u8], span: Span);
    fn is_zero(&self) -> bool;
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    /// Calls `visit` for the field; a nested layout calls it for each of its own fields.
    fn visit_as(&self, name: &'static str, visit: Visit<'_>) {
        visit(name, &Shown(self));
    }
}

/// A field of at most 64 bits.
pub(crate) trait Code: Copy + fmt::Display {
    const BITS: usize;
    fn from_raw(raw: u64) -> Self;
    fn raw(self) -> u64;
}

/// Displays a field's value by [`Field::show`].
struct Shown<'a, T>(&'a T);

impl<T: Field> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.show(f)
    }
}

impl<T: Code> Field for T {
    const BITS: usize = T::BITS;
    // Always inline: spans are constants, so only a load or a store remains.
    #[inline(always)]
    fn take(b: &[u8], span: Span) -> Self {
        let bytes = &b[span.byte()..span.end().div_ceil(8)];
        let raw = bytes.iter().fold(0, |raw: u64, &byte| raw << 8 | u64::from(byte));
        Self::from_raw(raw >> span.below() & mask(span))
    }
    #[inline(always)]
    fn store(&self, b: &mut [u8], span: Span) {
        let bytes = &mut b[span.byte()..span.end().div_ceil(8)];
        let raw = bytes.iter().fold(0, |raw: u64, &byte| raw << 8 | u64::from(byte));
        let others = raw & !(mask(span) << span.below());
        let new = others | (self.raw() & mask(span)) << span.below();
        for (byte, value) in bytes.iter_mut().rev().zip(new.to_le_bytes()) {
            *byte = value;
        }
    }
    fn is_zero(&self) -> bool {
        self.raw() == 0
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const fn mask(span: Span) -> u64 {
    u64::MAX >> (64 - span.len)
}

impl Field for Gid {
    const BITS: usize = 128;
    #[inline]
    fn take(b: &[u8], span: Span) -> Self {
        Self(get(b, span.byte()))
    }
    #[inline]
    fn store(&self, b: &mut [u8], span: Span) {
        put(b, span.byte(), self.0);
    }
    fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Shown as `[1 2 3]`.
impl<T: Field, const N: usize> Field for [T; N] {
    const BITS: usize = T::BITS * N;
    const ELEMENT_BITS: usize = T::BITS;
    #[inline]
    fn take(b: &[u8], span: Span) -> Self {
        core::array::from_fn(|i| T::take(b, span.nth(i, T::BITS)))
    }
    #[inline]
    fn store(&self, b: &mut [u8], span: Span) {
        for (i, item) in self.iter().enumerate() {
            item.store(b, span.nth(i, T::BITS));
        }
    }
    fn is_zero(&self) -> bool {
        self.iter().all(T::is_zero)
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, item) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            item.show(f)?;
        }
        f.write_str("]")
    }
}

/// Text in a field of fixed length: UTF-8, padded with zeros. A text of the full length has no
/// zero. Received bytes need not be UTF-8, and the bytes after the first zero need not be zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Text<const N: usize>(pub [u8; N]);

impl<const N: usize> Text<N> {
    /// Returns the bytes before the first zero.
    pub fn as_bytes(&self) -> &[u8] {
        let end = self.0.iter().position(|&byte| byte == 0);
        &self.0[..end.unwrap_or(N)]
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

/// Truncates a text that is longer than the field, between two characters.
impl<const N: usize> From<&str> for Text<N> {
    fn from(text: &str) -> Self {
        let text = &text[..text.floor_char_boundary(N)];
        let mut bytes = [0; N];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Self(bytes)
    }
}

/// Prints the text in quotation marks, with escapes.
impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

impl<const N: usize> Field for Text<N> {
    const BITS: usize = N * 8;
    fn take(b: &[u8], span: Span) -> Self {
        Self(get(b, span.byte()))
    }
    fn store(&self, b: &mut [u8], span: Span) {
        put(b, span.byte(), self.0);
    }
    fn is_zero(&self) -> bool {
        *self == Self::default()
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! numbers {
    ($($ty:ty, $bits:literal, |$raw:ident| $from:expr, |$value:ident| $to:expr;)*) => {$(
        impl Code for $ty {
            const BITS: usize = $bits;
            #[inline]
            fn from_raw($raw: u64) -> Self {
                $from
            }
            #[inline]
            fn raw(self) -> u64 {
                let $value = self;
                $to
            }
        }
    )*};
}

/// Returns the low 8, 16 or 32 bits: a field is never wider than its type.
pub(crate) const fn low8(raw: u64) -> u8 {
    let [low, ..] = raw.to_le_bytes();
    low
}
pub(crate) const fn low16(raw: u64) -> u16 {
    let [a, b, ..] = raw.to_le_bytes();
    u16::from_le_bytes([a, b])
}
pub(crate) const fn low32(raw: u64) -> u32 {
    let [a, b, c, d, ..] = raw.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

numbers! {
    bool, 1, |raw| raw != 0, |v| v.into();
    u8, 8, |raw| low8(raw), |v| v.into();
    u16, 16, |raw| low16(raw), |v| v.into();
    u32, 32, |raw| low32(raw), |v| v.into();
    u64, 64, |raw| raw, |v| v;
    Lid, 16, |raw| Self(low16(raw)), |v| v.0.into();
    Pkey, 16, |raw| Self(low16(raw)), |v| v.0.into();
    Qkey, 32, |raw| Self(low32(raw)), |v| v.0.into();
    Qpn, 24, |raw| Self::new(low32(raw)), |v| v.get().into();
    Guid, 64, |raw| Self(raw), |v| v.0;
    Mkey, 64, |raw| Self(raw), |v| v.0;
    SmKey, 64, |raw| Self(raw), |v| v.0;
    ServiceId, 64, |raw| Self(raw), |v| v.0;
}

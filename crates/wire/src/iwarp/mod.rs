//! iWARP: RDMA over a TCP stream.
//!
//! - [`mpa`]: the start-up frames that negotiate the parameters (RFC 5044 and 6581);
//! - [`fpdu`]: the frames after that: length, payload, padding, CRC, and [`markers`];
//! - [`ddp`]: the destination of a segment, by tag and offset or by queue (RFC 5041);
//! - [`rdmap`]: the operation of a segment (RFC 5040 and 7306);
//! - [`terminate`]: the error report of an end that stops;
//! - [`rtr`]: the complete first frames of peer-to-peer mode.
//!
//! A frame is written from pieces and parsed in place:
//!
//! ```
//! # use rdmux_wire::Stag;
//! # use rdmux_wire::iwarp::{ddp, fpdu::Framing, rdmap::Opcode};
//! let framing = Framing { crc: true, markers: false };
//! let header = ddp::Tagged { last: true, stag: Stag(7), to: 0x1000 };
//! let header = ddp::Header::new(Opcode::Write, ddp::Model::Tagged(header)).to_buf();
//! let mut frame = [0; 64];
//! let len = framing.emit(0, &[&header, b"payload"], &mut frame);
//! let parsed = framing.parse(0, &frame[..len]).unwrap().unwrap();
//! assert_eq!((parsed.frame_len, parsed.ulpdu_len), (len, 14 + 7));
//! assert_eq!(ddp::Header::parse(parsed.contiguous().unwrap()).unwrap().opcode, Opcode::Write);
//! ```

pub mod ddp;
pub mod fpdu;
pub mod markers;
pub mod mpa;
pub mod rdmap;
pub mod rtr;
pub mod terminate;

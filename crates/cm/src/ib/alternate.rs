//! LAP and APR: alternate paths (IBTA 12.8). RoCE has none, so every LAP is answered with a no.

use rdmux_wire::cm::{Apr, CmMad, Lap, Message};

use super::Cm;
use super::state::State;
use crate::path::MadPath;
use crate::sink::Sink;

/// APR status: there is no such connection (IBTA table 124).
const INVALID_COMM_ID: u8 = 1;
/// APR status: alternate paths are not supported.
const UNSUPPORTED: u8 = 2;

impl Cm {
    /// LAP came.
    pub(super) fn handle_lap(&mut self, path: &MadPath, tid: u64, lap: &Lap, sink: &mut impl Sink) {
        let status = match self.find(lap.remote_comm_id, lap.local_comm_id, path) {
            Some(c) if c.state() == State::Established => UNSUPPORTED,
            Some(_) => {
                self.counters.unexpected += 1;
                return;
            }
            None => INVALID_COMM_ID,
        };
        let apr = Apr {
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            info_len: 0,
            status,
            info: [0; 72],
            private_data: [0; 148],
        };
        let path = path.reply(self.config.hop_limit);
        self.send(&path, &CmMad::new(tid, Message::Apr(apr)).to_bytes(), sink);
    }
}

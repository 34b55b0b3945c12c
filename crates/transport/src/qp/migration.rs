//! Automatic path migration (IBTA 17.2.8): failover of a connection to an alternate path.
//!
//! ```text
//!                        modify, with an alternate path loaded
//!            MIGRATED ------------------------------------------> REARM
//!          MigReq set <---.                                         | MigReq clear
//!                         |                                         |
//!      modify, no retry   |                                         | the peer's MigReq is clear
//!      left, or the       |                                         v
//!      peer's MigReq set  `-------------------------------------- ARMED   MigReq clear
//! ```
//!
//! Each end shows by MigReq in all its packets whether it is ready. The end that migrates sets MigReq, and the other end
//! follows when it sees this in a packet that arrived along the alternate path. Both ends then retransmit unacknowledged
//! packets along the new path, with all retries. The PSNs stay the same, so nothing is carried out twice.
//!
//! In the specification an end learns the other end's state only from the program's packets. Here
//! an end whose state changes repeats its last acknowledgement, so that idle connections are armed,
//! too, and follow at once. The other end drops this ACK as a duplicate.

use alloc::boxed::Box;

use crate::attr::{AddressVector, AttrMask, MigState, QpAttr, QpState, QpType};
use crate::env::{Drop, Env, QpEvent};
use crate::error::ModifyError;
use crate::qp::{Qp, RxPacket};
use crate::time::Time;

/// The migration state of a queue pair.
#[derive(Debug)]
pub(super) struct Migration {
    state: MigState,
    /// The MigReq bit of the packets that this end sends.
    mig_req: bool,
    /// Whether an alternate path is loaded and the connection has not migrated to it.
    is_loaded: bool,
    /// Whether a packet along the current path with each value of MigReq needs no special handling.
    usual: [bool; 2],
    /// Whether the peer must still see this end's MigReq, so that acknowledgements must be packets.
    shows: bool,
    /// Whether a refused request to migrate has been reported to the program.
    has_refused: bool,
    /// The path before the migration. The peer's packets may use it until the peer has followed.
    former: Option<Box<Leg>>,
}

/// The part of a path that packets show.
#[derive(Clone, Copy, Debug)]
struct Leg {
    av: AddressVector,
    pkey_index: u16,
    port: u8,
}

/// Both values of MigReq are usual.
const ANY: [bool; 2] = [true; 2];
/// Only a clear MigReq is usual.
const CLEAR: [bool; 2] = [true, false];
/// Neither value is usual.
const NONE: [bool; 2] = [false; 2];

impl Default for Migration {
    fn default() -> Self {
        Self {
            state: MigState::Migrated,
            mig_req: true,
            is_loaded: false,
            usual: ANY,
            shows: false,
            has_refused: false,
            former: None,
        }
    }
}

impl Migration {
    pub(super) fn state(&self) -> MigState {
        self.state
    }

    /// Returns the MigReq bit of the packets that this end sends.
    #[inline]
    pub(super) fn mig_req(&self) -> bool {
        self.mig_req
    }

    /// Returns whether a packet with this MigReq along the current path needs no special handling.
    #[inline]
    pub(super) fn is_usual(&self, mig_req: bool) -> bool {
        self.usual[usize::from(mig_req)]
    }

    /// Returns whether the path of an arriving packet matters.
    #[inline]
    pub(super) fn minds(&self) -> bool {
        self.usual != ANY
    }

    /// Returns whether the peer must still see this end's MigReq, which an acknowledgement that is not a packet does not
    /// carry.
    #[inline]
    pub(super) fn shows(&self) -> bool {
        self.shows
    }

    /// Records that an acknowledging packet with MigReq was sent. It may be lost, so an end that waits for the other
    /// repeats it.
    #[inline]
    pub(super) fn shown(&mut self) {
        if self.shows {
            self.shows = self.usual == NONE;
        }
    }

    /// Records that an alternate path was loaded.
    fn load(&mut self) {
        (self.is_loaded, self.has_refused) = (true, false);
    }

    /// Enters a state in which these values of MigReq are usual in the peer's packets.
    fn go_to(&mut self, state: MigState, usual: [bool; 2]) {
        (self.state, self.usual, self.shows, self.has_refused) = (state, usual, true, false);
        self.update();
    }

    /// Enters MIGRATED: the alternate path is now the path, and the peer may still use the former one.
    fn go_to_migrated(&mut self, former: Option<Box<Leg>>) {
        let usual = if former.is_some() { NONE } else { ANY };
        (self.former, self.is_loaded) = (former, false);
        self.go_to(MigState::Migrated, usual);
    }

    /// Updates this end's MigReq. An end that rearms before the peer has followed keeps it set, so that the peer follows
    /// first.
    fn update(&mut self) {
        self.mig_req = self.state == MigState::Migrated || self.former.is_some();
    }

    /// Stops accepting packets along the former path.
    fn forget_former(&mut self) {
        if self.former.take().is_none() {
            return;
        }
        if self.state == MigState::Migrated {
            (self.usual, self.shows) = (ANY, false);
        }
        self.update();
    }
}

impl Leg {
    /// Checks whether the packet's P_Key and source allow it to have arrived along this path.
    fn check<E: Env>(&self, rx: &RxPacket<'_>, env: &E) -> Result<(), Drop> {
        let own = env.pkey_of_port(self.port, self.pkey_index);
        if !own.is_some_and(|own| rx.packet.bth.pkey.admits(own)) {
            return Err(Drop::Pkey);
        }
        if rx.source.is_from(&self.av) { Ok(()) } else { Err(Drop::Source) }
    }

    /// Like `check`, but also queries the driver: two paths may differ at this end only.
    fn check_both_ends<E: Env>(&self, rx: &RxPacket<'_>, env: &E) -> Result<(), Drop> {
        self.check(rx, env)?;
        if env.came_along(&self.av, rx.source) { Ok(()) } else { Err(Drop::Source) }
    }
}

impl Qp {
    /// Returns whether the path of an arriving packet matters to this queue pair. A driver whose packets do not show the
    /// path must then be able to determine it ([`Env::came_along`]).
    #[inline]
    pub fn minds_path(&self) -> bool {
        self.mig.minds()
    }

    fn primary(&self) -> Leg {
        let QpAttr { av, pkey_index, port_num, .. } = self.attr;
        Leg { av, pkey_index, port: port_num }
    }

    fn alternate(&self) -> Leg {
        let QpAttr { alt_av, alt_pkey_index, alt_port_num, .. } = self.attr;
        Leg { av: alt_av, pkey_index: alt_pkey_index, port: alt_port_num }
    }

    /// Handles a packet of a connected queue pair that failed the check for the usual path and MigReq. Updates the
    /// migration state from the packet, and returns an error if it must be dropped.
    #[cold]
    pub(super) fn came_otherwise<E: Env>(
        &mut self,
        now: Time,
        rx: &RxPacket<'_>,
        env: &mut E,
    ) -> Result<(), Drop> {
        let asks = rx.packet.bth.mig_req;
        let by_primary = self.primary().check(rx, env);
        if let Some(former) = &self.mig.former {
            let by_former = former.check_both_ends(rx, env);
            let by_primary = by_primary.and_then(|()| self.primary().check_both_ends(rx, env));
            return self.came_after_migration(asks, by_primary, by_former);
        }
        match self.mig.state {
            MigState::Migrated => by_primary,
            MigState::Armed if !asks => by_primary,
            MigState::Armed => self.came_with_request(now, rx, env),
            MigState::Rearm => {
                if asks && self.is_by_alternate_only(rx, by_primary, env) {
                    // Only an armed end migrates, so the packet that would have armed this end, too, was lost.
                    self.migrate(now, false, env);
                    return Ok(());
                }
                by_primary?;
                if !asks {
                    self.mig.go_to(MigState::Armed, CLEAR);
                    self.owe_sign();
                }
                Ok(())
            }
        }
    }

    fn is_by_alternate_only<E: Env>(
        &self,
        rx: &RxPacket<'_>,
        by_primary: Result<(), Drop>,
        env: &E,
    ) -> bool {
        let by_primary = by_primary.and_then(|()| self.primary().check_both_ends(rx, env));
        by_primary.is_err() && self.alternate().check_both_ends(rx, env).is_ok()
    }

    /// Handles a request of the peer to migrate, in ARMED.
    fn came_with_request<E: Env>(
        &mut self,
        now: Time,
        rx: &RxPacket<'_>,
        env: &mut E,
    ) -> Result<(), Drop> {
        let refusal = self.alternate().check_both_ends(rx, env);
        if refusal.is_ok() {
            self.migrate(now, false, env);
        } else if !core::mem::replace(&mut self.mig.has_refused, true) {
            env.event(QpEvent::PathMigErr);
        }
        refusal
    }

    /// Handles a packet while the peer may not have followed yet. Returns an error if it must be
    /// dropped.
    fn came_after_migration(
        &mut self,
        asks: bool,
        by_primary: Result<(), Drop>,
        by_former: Result<(), Drop>,
    ) -> Result<(), Drop> {
        if by_primary.is_ok() && (asks || by_former.is_err()) {
            self.mig.forget_former();
            if self.mig.state == MigState::Rearm {
                self.owe_sign();
            }
        }
        by_primary.or_else(|fault| by_former.map_err(|_| fault))
    }

    /// Migrates when the peer no longer answers along the path. Returns false unless ARMED.
    pub(super) fn migrates_instead<E: Env>(&mut self, now: Time, env: &mut E) -> bool {
        let is_armed = self.mig.state == MigState::Armed;
        if is_armed {
            self.migrate(now, true, env);
        }
        is_armed
    }

    /// Migrates to the alternate path. `first` is set if the peer has not migrated yet.
    fn migrate<E: Env>(&mut self, now: Time, first: bool, env: &mut E) {
        let former = first.then(|| Box::new(self.primary()));
        let attr = &mut self.attr;
        attr.av = AddressVector { port_num: attr.alt_port_num, ..attr.alt_av };
        attr.port_num = attr.alt_port_num;
        (attr.pkey_index, attr.timeout) = (attr.alt_pkey_index, attr.alt_timeout);
        self.mig.go_to_migrated(former);
        env.migrated(&self.attr);
        self.owe_sign();
        self.start_over(now, env.link());
        env.event(QpEvent::PathMig);
    }

    /// Makes sure that the peer sees MigReq soon, even if no data is sent to it.
    fn owe_sign(&mut self) {
        if matches!(self.qp_type, QpType::Rc | QpType::XrcRecv) {
            self.resp.owe_ack();
        }
    }

    /// Checks whether `modify` may make the requested change of the migration state.
    pub(super) fn check_migration<E: Env>(
        &self,
        attr: &QpAttr,
        mask: AttrMask,
        state: QpState,
        env: &E,
    ) -> Result<(), ModifyError> {
        let has = |flag| mask.contains(flag);
        if has(AttrMask::ALT_PATH) {
            let index = attr.alt_pkey_index;
            let key = env.pkey_of_port(attr.alt_port_num, index);
            key.ok_or(ModifyError::PkeyIndex(index))?;
        }
        if !has(AttrMask::PATH_MIG_STATE) {
            return Ok(());
        }
        let Some(to) = MigState::of_code(attr.path_mig_state) else {
            let value = attr.path_mig_state.into();
            return Err(ModifyError::OutOfRange { attr: AttrMask::PATH_MIG_STATE, value, max: 2 });
        };
        let from = self.mig.state;
        let is_loaded = self.mig.is_loaded || has(AttrMask::ALT_PATH);
        let why = match (from, to) {
            (MigState::Migrated, MigState::Migrated) | (MigState::Armed, MigState::Armed) => "",
            (_, MigState::Armed) => "only the peer's packets arm the path: request REARM",
            (_, MigState::Rearm) if state != QpState::Rts => "the queue pair must be in RTS",
            (_, MigState::Rearm) if !is_loaded => "load an alternate path first",
            (MigState::Rearm, MigState::Migrated) => "the path is not armed yet",
            (_, MigState::Rearm) | (MigState::Armed, MigState::Migrated) => "",
        };
        if why.is_empty() { Ok(()) } else { Err(ModifyError::Migration { from, to, state, why }) }
    }

    /// Applies the change of the migration state that `modify` requested.
    pub(super) fn change_migration<E: Env>(
        &mut self,
        now: Time,
        attr: &QpAttr,
        mask: AttrMask,
        env: &mut E,
    ) {
        if mask.contains(AttrMask::AV) {
            self.mig.forget_former();
        }
        if mask.contains(AttrMask::ALT_PATH) {
            self.mig.load();
        }
        if !mask.contains(AttrMask::PATH_MIG_STATE) {
            return;
        }
        match MigState::of_code(attr.path_mig_state) {
            Some(MigState::Rearm) => {
                self.mig.go_to(MigState::Rearm, NONE);
                self.owe_sign();
            }
            Some(MigState::Migrated) => {
                self.migrates_instead(now, env);
            }
            Some(MigState::Armed) | None => {}
        }
    }
}

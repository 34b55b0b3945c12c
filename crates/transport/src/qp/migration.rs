//! Automatic path migration (IBTA 17.2.8): a connection goes on by an alternate path.
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
//! Each end tells by MigReq in all its packets whether it is ready. Who migrates sets it, and the other end follows when
//! it sees that in a packet that came by the alternate path. What was not acknowledged then is sent again by the new path,
//! by both ends and with all retries; the PSNs are the same, so nothing is carried out twice.
//!
//! The specification leaves to packets of the program when an end learns how far the other one is. Here an end whose state
//! changes acknowledges what it has acknowledged already, so that connections on which nothing is sent are armed, too, and
//! follow at once. The other end drops such an ACK as one that says nothing new.

use alloc::boxed::Box;

use crate::attr::{AddressVector, AttrMask, MigState, QpAttr, QpState, QpType};
use crate::env::{Drop, Env, QpEvent};
use crate::error::ModifyError;
use crate::qp::{Qp, RxPacket};
use crate::time::Time;

/// How far a queue pair is with it.
#[derive(Debug)]
pub(super) struct Migration {
    state: MigState,
    /// MigReq in our packets.
    mig_req: bool,
    /// Whether there is an alternate path that was not migrated to yet.
    is_loaded: bool,
    /// For each value of MigReq whether it means nothing in a packet which came by the path.
    usual: [bool; 2],
    /// Whether the peer is yet to see our MigReq, so that acknowledgements must be packets.
    shows: bool,
    /// Whether the program was told of a request to migrate that was refused.
    has_refused: bool,
    /// The path before the migration, by which the peer's packets may come until it has followed.
    former: Option<Box<Leg>>,
}

/// A path as packets show it.
#[derive(Clone, Copy, Debug)]
struct Leg {
    av: AddressVector,
    pkey_index: u16,
    port: u8,
}

/// Both values of MigReq.
const ANY: [bool; 2] = [true; 2];
/// It is clear.
const CLEAR: [bool; 2] = [true, false];
/// Neither.
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

    /// MigReq in our packets.
    #[inline]
    pub(super) fn mig_req(&self) -> bool {
        self.mig_req
    }

    /// Whether a packet that came by the path with this MigReq is one like all others.
    #[inline]
    pub(super) fn is_usual(&self, mig_req: bool) -> bool {
        self.usual[usize::from(mig_req)]
    }

    /// Whether it matters by which path a packet came.
    #[inline]
    pub(super) fn minds(&self) -> bool {
        self.usual != ANY
    }

    /// Whether the peer is to see MigReq, which an acknowledgement that is no packet does not have.
    #[inline]
    pub(super) fn shows(&self) -> bool {
        self.shows
    }

    /// A packet with MigReq has left that acknowledges. It may be lost, so an end that waits for the other shows it again.
    #[inline]
    pub(super) fn shown(&mut self) {
        if self.shows {
            self.shows = self.usual == NONE;
        }
    }

    /// An alternate path is loaded.
    fn load(&mut self) {
        (self.is_loaded, self.has_refused) = (true, false);
    }

    /// Goes to a state, in which the peer's packets may or may not have MigReq.
    fn go_to(&mut self, state: MigState, usual: [bool; 2]) {
        (self.state, self.usual, self.shows, self.has_refused) = (state, usual, true, false);
        self.update();
    }

    /// The alternate path is the path, and the peer may still use the former one.
    fn go_to_migrated(&mut self, former: Option<Box<Leg>>) {
        let usual = if former.is_some() { NONE } else { ANY };
        (self.former, self.is_loaded) = (former, false);
        self.go_to(MigState::Migrated, usual);
    }

    /// Who rearms before the peer has followed asks it to do that first.
    fn update(&mut self) {
        self.mig_req = self.state == MigState::Migrated || self.former.is_some();
    }

    /// The peer is not expected by the former path any more.
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
    /// Whether a packet may have come by this path.
    fn check<E: Env>(&self, rx: &RxPacket<'_>, env: &E) -> Result<(), Drop> {
        let own = env.pkey_of_port(self.port, self.pkey_index);
        if !own.is_some_and(|own| rx.packet.bth.pkey.admits(own)) {
            return Err(Drop::Pkey);
        }
        if rx.source.is_from(&self.av) { Ok(()) } else { Err(Drop::Source) }
    }

    /// Whether it did, as far as anybody can tell: paths may differ in our end only.
    fn check_both_ends<E: Env>(&self, rx: &RxPacket<'_>, env: &E) -> Result<(), Drop> {
        self.check(rx, env)?;
        if env.came_along(&self.av, rx.source) { Ok(()) } else { Err(Drop::Source) }
    }
}

impl Qp {
    /// Whether it matters to this queue pair by which path a packet came: a driver whose packets do not say so must be able
    /// to tell then ([`Env::came_along`]).
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

    /// A packet of a connected queue pair did not come by the path as ever. Whether it is taken; what it says of the
    /// migration counts then.
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
                    // Only one that is armed migrates: what would have armed this end, too, was lost.
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

    /// In ARMED the peer asks to migrate.
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

    /// The peer may not have followed yet.
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

    /// Nobody answers by the path any more: the other one, if there is one. False if not.
    pub(super) fn migrates_instead<E: Env>(&mut self, now: Time, env: &mut E) -> bool {
        let is_armed = self.mig.state == MigState::Armed;
        if is_armed {
            self.migrate(now, true, env);
        }
        is_armed
    }

    /// Goes on by the alternate path. `first` says that the peer does not yet.
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

    /// The peer is to see MigReq soon, whether or not anything is sent to it.
    fn owe_sign(&mut self) {
        if matches!(self.qp_type, QpType::Rc | QpType::XrcRecv) {
            self.resp.owe_ack();
        }
    }

    /// Whether `modify` may do what it is to do with the migration state.
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
            (_, MigState::Armed) => "only the peer's packets arm it: ask for REARM",
            (_, MigState::Rearm) if state != QpState::Rts => "it must be in RTS",
            (_, MigState::Rearm) if !is_loaded => "load an alternate path first",
            (MigState::Rearm, MigState::Migrated) => "it is not armed yet",
            (_, MigState::Rearm) | (MigState::Armed, MigState::Migrated) => "",
        };
        if why.is_empty() { Ok(()) } else { Err(ModifyError::Migration { from, to, state, why }) }
    }

    /// Does it.
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

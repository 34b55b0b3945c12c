//! The states of one connection and their transitions.

use core::fmt;

/// The state of a connection (IBTA 12.9.5 to 12.9.7). There is no idle state: a connection that is
/// over is removed ("forgotten").
///
/// ```text
///  active                                      passive
///
///    connect: REQ out                            REQ in
///         v                                         v
///      ReqSent -- MRA in --> MraReqRcvd          ReqRcvd   (answers duplicates with MRA)
///         |  REP in              |  REP in          |  accept: REP out
///         v                      |                  v
///      RepRcvd <-----------------+               RepSent -- MRA in --> MraRepRcvd
///         |  establish: RTU out                     |  RTU in, or data seen |
///         v                                         v                       |
///     Established                              Established <----------------+
///
///  both
///
///     Established -- disconnect: DREQ out --> DreqSent -- DREP or DREQ in, or no answer --+
///         |  DREQ in (RepSent, MraRepRcvd too; in RepRcvd it waits for establish)         v
///         +--> DreqRcvd -- disconnect: DREP out ------------------------------------> TimeWait
///                                                                                         |
///     REJ in:   before RTU: forgotten, or TimeWait if the queue pair was told to be       v
///               stale; RepRcvd, Established, DreqSent: TimeWait                       forgotten
///     REJ out:  forgotten, but from RepSent and MraRepRcvd to DreqSent, because the REJ
///               may be lost while the peer's RTU is under way
///     no answer: ReqSent, RepSent and the MRA states: forgotten
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Active: REQ is out.
    ReqSent,
    /// Active: the peer sent MRA for the REQ.
    MraReqRcvd,
    /// Active: REP received; the program has not established yet.
    RepRcvd,
    /// Passive: REQ received; the program has not answered yet.
    ReqRcvd,
    /// Passive: REP is out.
    RepSent,
    /// Passive: the peer sent MRA for the REP.
    MraRepRcvd,
    /// Connected.
    Established,
    /// DREQ is out.
    DreqSent,
    /// The peer wants to disconnect; the program has not answered yet.
    DreqRcvd,
    /// Closed; late messages are still recognised.
    TimeWait,
}

impl State {
    /// Returns the states that may follow.
    const fn successors(self) -> &'static [Self] {
        match self {
            Self::ReqSent => &[Self::MraReqRcvd, Self::RepRcvd, Self::TimeWait],
            Self::MraReqRcvd => &[Self::RepRcvd, Self::TimeWait],
            Self::RepRcvd => &[Self::Established, Self::TimeWait],
            Self::ReqRcvd => &[Self::RepSent, Self::TimeWait],
            Self::RepSent => &[
                Self::MraRepRcvd,
                Self::Established,
                Self::DreqSent,
                Self::DreqRcvd,
                Self::TimeWait,
            ],
            Self::MraRepRcvd => {
                &[Self::Established, Self::DreqSent, Self::DreqRcvd, Self::TimeWait]
            }
            Self::Established => &[Self::DreqSent, Self::DreqRcvd, Self::TimeWait],
            Self::DreqSent | Self::DreqRcvd => &[Self::TimeWait],
            Self::TimeWait => &[],
        }
    }

    /// Returns whether `next` may follow.
    pub fn may_become(self, next: Self) -> bool {
        self.successors().contains(&next)
    }

    /// Returns whether REQ is sent and has no final answer yet.
    pub const fn awaits_rep(self) -> bool {
        matches!(self, Self::ReqSent | Self::MraReqRcvd)
    }
    /// Returns whether REP is sent and has no final answer yet.
    pub const fn awaits_rtu(self) -> bool {
        matches!(self, Self::RepSent | Self::MraRepRcvd)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReqSent => "REQ_SENT",
            Self::MraReqRcvd => "MRA_REQ_RCVD",
            Self::RepRcvd => "REP_RCVD",
            Self::ReqRcvd => "REQ_RCVD",
            Self::RepSent => "REP_SENT",
            Self::MraRepRcvd => "MRA_REP_RCVD",
            Self::Established => "ESTABLISHED",
            Self::DreqSent => "DREQ_SENT",
            Self::DreqRcvd => "DREQ_RCVD",
            Self::TimeWait => "TIMEWAIT",
        })
    }
}

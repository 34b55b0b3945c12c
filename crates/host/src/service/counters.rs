//! What the service itself counts.

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal,)*) => {
        /// What is counted. The name is the reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub(super) enum Count { $($(#[doc = $doc])* $name,)* }

        const NAMES: &[&str] = &[$($text,)*];
    };
}

counters! {
    /// Datagrams that came to the service's sockets.
    RxPackets => "service_rx_packets",
    /// Management datagrams that went out.
    TxMads => "service_tx_mads",
    /// Management datagrams for QP0 or QP1.
    RxMads => "service_rx_mads",
    /// A datagram that the socket or the kernel did not take.
    TxErrors => "service_tx_errors",
    /// Wrong invariant checksum.
    DropIcrc => "service_drop_icrc",
    /// Not a packet.
    DropMalformed => "service_drop_malformed",
    /// Not a datagram with DETH, to QP0 or QP1.
    DropOpcode => "service_drop_opcode",
    /// Wrong partition.
    DropPkey => "service_drop_pkey",
    /// Not the Q_Key of QP1.
    DropQkey => "service_drop_qkey",
    /// Not 256 bytes.
    DropMadLength => "service_drop_mad_length",
    /// Not base version 1.
    DropMadVersion => "service_drop_mad_version",
    /// No agent for the class, its version or the method.
    DropMadClass => "service_drop_mad_no_agent",
    /// A response to nothing.
    DropMadStale => "service_drop_mad_stale",
    /// For QP0, where it is nobody's.
    DropQp0 => "service_drop_qp0",
    /// For a queue pair number of nobody.
    DropNoQp => "service_drop_no_qp",
    /// Passed on to the process that it was for.
    Strays => "service_strays_passed_on",
    /// Did not fit a process's socket any more.
    StraysLost => "service_strays_lost",
    /// Questions of other hosts on which devices somebody listens.
    KindsAnswered => "service_listening_devices_told",
    /// Management datagrams whose response timed out.
    MadTimeouts => "service_mad_timeouts",
    /// Clients that came.
    ClientsCame => "service_clients_came",
    /// Clients that closed their socket.
    ClientsClosed => "service_clients_closed",
    /// Clients whose process ended.
    ClientsDied => "service_clients_died",
    /// Clients that broke the protocol.
    ClientsBroke => "service_clients_broke_protocol",
    /// Clients that did not read what they were sent.
    ClientsSlow => "service_clients_too_slow",
    /// Connections that the service had no descriptor for.
    ClientsRefused => "service_clients_refused",
    /// Requests.
    Requests => "service_requests",
    /// Requests that were refused.
    Refusals => "service_requests_refused",
    /// Adapters that a fabric gave.
    FabricAttached => "service_fabric_attached",
    /// Greetings to which a fabric gave no adapter.
    FabricRefused => "service_fabric_refused",
    /// Greetings that a fabric did not answer in time.
    FabricSilent => "service_fabric_silent",
    /// Connections on which a fabric said what makes no sense.
    FabricBroke => "service_fabric_broke_protocol",
    /// Answers of subnet administration.
    SaAnswers => "service_sa_answers",
    /// Questions that subnet administration did not answer.
    SaTimeouts => "service_sa_timeouts",
    /// The broadcast group could not be joined.
    BroadcastRefused => "service_broadcast_group_refused",
    /// ARP packets and neighbour discovery messages that went out on InfiniBand.
    TxResolutions => "service_tx_address_resolutions",
    /// Those that came.
    RxResolutions => "service_rx_address_resolutions",
}

/// The counters.
#[derive(Debug)]
pub(super) struct Counts([u64; NAMES.len()]);

impl Counts {
    pub(super) fn new() -> Self {
        Self([0; NAMES.len()])
    }
    pub(super) fn add(&mut self, count: Count) {
        self.0[count as usize] += 1;
    }
    pub(super) fn get(&self, count: Count) -> u64 {
        self.0[count as usize]
    }
    pub(super) fn all(&self) -> Vec<(String, u64)> {
        NAMES.iter().zip(self.0).map(|(name, v)| ((*name).to_owned(), v)).collect()
    }
}

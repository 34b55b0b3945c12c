//! The service's own counters.

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal,)*) => {
        /// The counted events. The name gives the reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub(super) enum Count { $($(#[doc = $doc])* $name,)* }

        const NAMES: &[&str] = &[$($text,)*];
    };
}

counters! {
    /// Datagrams received on the service's sockets.
    RxPackets => "service_rx_packets",
    /// Management datagrams sent.
    TxMads => "service_tx_mads",
    /// Management datagrams received for QP0 or QP1.
    RxMads => "service_rx_mads",
    /// Datagrams that the socket or the kernel did not accept.
    TxErrors => "service_tx_errors",
    /// Dropped: wrong invariant checksum.
    DropIcrc => "service_drop_icrc",
    /// Dropped: not a packet.
    DropMalformed => "service_drop_malformed",
    /// Dropped: not a datagram with DETH, to QP0 or QP1.
    DropOpcode => "service_drop_opcode",
    /// Dropped: wrong partition.
    DropPkey => "service_drop_pkey",
    /// Dropped: not the Q_Key of QP1.
    DropQkey => "service_drop_qkey",
    /// Dropped: not 256 bytes.
    DropMadLength => "service_drop_mad_length",
    /// Dropped: not base version 1.
    DropMadVersion => "service_drop_mad_version",
    /// Dropped: no agent for the class, its version or the method.
    DropMadClass => "service_drop_mad_no_agent",
    /// Dropped: a response that matches no request.
    DropMadStale => "service_drop_mad_stale",
    /// Dropped: for QP0, which has no agent.
    DropQp0 => "service_drop_qp0",
    /// Dropped: for a queue pair number without an owner.
    DropNoQp => "service_drop_no_qp",
    /// Dropped: passed on by a process whose device receives no datagrams at that address.
    DropStray => "service_drop_stray",
    /// Datagrams passed on to the process that owns the queue pair.
    Strays => "service_strays_passed_on",
    /// Datagrams dropped because the process's socket was full.
    StraysLost => "service_strays_lost",
    /// Answered queries of other hosts for the devices that have a listener.
    KindsAnswered => "service_listening_devices_told",
    /// Management datagrams whose response timed out.
    MadTimeouts => "service_mad_timeouts",
    /// Clients that connected.
    ClientsCame => "service_clients_came",
    /// Clients that closed their socket.
    ClientsClosed => "service_clients_closed",
    /// Clients whose process ended.
    ClientsDied => "service_clients_died",
    /// Clients that broke the protocol.
    ClientsBroke => "service_clients_broke_protocol",
    /// Clients that did not read their messages.
    ClientsSlow => "service_clients_too_slow",
    /// Connections refused for lack of a descriptor.
    ClientsRefused => "service_clients_refused",
    /// Requests handled.
    Requests => "service_requests",
    /// Requests that were refused.
    Refusals => "service_requests_refused",
    /// Adapters that a fabric assigned.
    FabricAttached => "service_fabric_attached",
    /// Greetings that a fabric refused.
    FabricRefused => "service_fabric_refused",
    /// Greetings that a fabric did not answer in time.
    FabricSilent => "service_fabric_silent",
    /// Connections on which a fabric broke the protocol.
    FabricBroke => "service_fabric_broke_protocol",
    /// Responses of subnet administration.
    SaAnswers => "service_sa_answers",
    /// Queries that subnet administration did not answer.
    SaTimeouts => "service_sa_timeouts",
    /// Failed joins of the broadcast group.
    BroadcastRefused => "service_broadcast_group_refused",
    /// ARP packets and neighbour discovery messages sent on InfiniBand.
    TxResolutions => "service_tx_address_resolutions",
    /// ARP packets and neighbour discovery messages received on InfiniBand.
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

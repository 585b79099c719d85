//! Planted bugs of processes with replicas, beside the driver.

use zonal_consensus::PeerMessage;

/// The library's numbers of the questions of a candidate, with those of their answers.
const VOTES: [(u8, u8); 2] = [(5, 6), (17, 18)];

/// Votes of a member that did not answer: a candidate counts them as given.
pub(super) fn assumed_votes(asked: Vec<PeerMessage>, life: u64) -> Vec<PeerMessage> {
    let assume = |mut message: PeerMessage| {
        let part = message.raft.as_mut()?;
        let (_, answer) = VOTES.iter().find(|(question, _)| *question == part.kind)?;
        part.kind = *answer;
        (message.from, message.to, message.life) = (message.to, message.from, life);
        Some(message)
    };
    asked.into_iter().filter_map(assume).collect()
}

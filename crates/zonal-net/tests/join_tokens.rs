//! Claims of new nodes: without a certificate a claim is all that a peer may send. The token's
//! holder claims from managers of the pinned authority only.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use zonal_net::{
    Authority, ClaimOutcome, Credential, Handler, JoinToken, ListenConfig, Listeners, NetError,
    Peer, ReplyBuilder, ServerConfig, ServerHandle, ServerRoles, SubjectKind, TlsFault, TokenClaim,
    serve,
};
use zonal_types::Blob;
use zonal_wire::Header;

const LIMIT: Duration = Duration::from_secs(20);

/// A manager that knows one token.
struct OneToken(TokenClaim, Vec<u8>);

impl Handler for OneToken {
    fn claim(&self, claim: &TokenClaim) -> ClaimOutcome {
        match *claim == self.0 {
            true => ClaimOutcome::Sealed {
                sealed: Blob(self.1.clone()),
            },
            false => ClaimOutcome::Unknown,
        }
    }

    fn handle(&self, _: &Peer, _: &Header, _: &[u8], _: &[u8], _: &mut ReplyBuilder) {
        panic!("a claim is all that comes here");
    }
}

fn server(keys: &Keys, roles: ServerRoles, handler: OneToken) -> ServerHandle {
    let nodes = vec![NODE];
    let credential: Option<Arc<Credential>> =
        keys.issue(SubjectKind::Server { nodes, roles }, TERM);
    let config = ServerConfig::new(server_identity(credential));
    let listen = ListenConfig::one("127.0.0.1:0".parse().unwrap());
    let listeners = Listeners::bind(&listen, &config.identity).unwrap();
    serve(listeners, config, Arc::new(handler)).unwrap()
}

fn token(authority: &Authority) -> JoinToken {
    let certificate = authority.certificate().unwrap();
    JoinToken::make(CELL, &certificate, vec!["127.0.0.1:1".to_owned()]).unwrap()
}

const MANAGER: ServerRoles = ServerRoles {
    manager: true,
    meta: false,
    storage: false,
    agent: false,
};

#[test]
fn the_holder_of_a_token_gets_what_was_sealed_for_it() {
    let keys = Keys::new();
    let token = token(&keys.0);
    assert_eq!(token.text().parse(), Ok(token.clone()));
    let sealed = token.seal(b"a credential").unwrap();
    let server = server(&keys, MANAGER, OneToken(token.claim(), sealed));
    let to = server.addresses()[0];
    let ClaimOutcome::Sealed { sealed } = token.claim_from(to, LIMIT).unwrap() else {
        panic!("refused");
    };
    assert_eq!(token.unseal(&sealed.0).unwrap(), b"a credential");
    let other = self::token(&keys.0);
    assert_eq!(other.claim_from(to, LIMIT).unwrap(), ClaimOutcome::Unknown);
    assert_eq!(other.unseal(&sealed.0), None);
    let mut changed = sealed.0;
    changed[3] ^= 1;
    assert_eq!(token.unseal(&changed), None);
    // Claims end their connections and leave nothing.
    counted(&server, "frames_in", 0);
}

#[test]
fn a_claim_goes_to_managers_of_the_pinned_authority_only() {
    let (own, other) = (Keys::new(), Keys::new());
    let token = token(&own.0);
    let knows = || OneToken(token.claim(), Vec::new());
    let storage = ServerRoles {
        manager: false,
        storage: true,
        ..MANAGER
    };
    for (keys, roles) in [(&other, MANAGER), (&own, storage)] {
        let server = server(keys, roles, knows());
        match token.claim_from(server.addresses()[0], LIMIT).unwrap_err() {
            NetError::Unauthenticated { fault, .. } => assert_eq!(fault, TlsFault::Untrusted),
            error => panic!("{error}"),
        }
    }
}

#[test]
fn texts_that_are_no_tokens_are_refused() {
    let text = token(&Keys::new().0).text();
    for bad in [
        "",
        "zonal-",
        "zonal-zz",
        &text[1..],
        &text[..text.len() - 2],
        &format!("{text}00"),
        &format!("zonal-{}", "00".repeat(4096)),
    ] {
        assert!(bad.parse::<JoinToken>().is_err(), "{bad}");
    }
}

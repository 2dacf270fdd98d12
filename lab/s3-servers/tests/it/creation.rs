//! Servers that create an object more than once are refused.

use std::sync::Arc;

use crate::disk::Place;
use crate::inside::{Creation, Inside};
use crate::weed::Weed;
use corewise_object::OpenErrorKind;
use object_store::path::Path;
use object_store::{Error, ObjectStore as _, ObjectStoreExt as _, PutMode};

/// Returns true if in one of at most `rounds` more than one of eight racing creators succeeded.
fn won_twice(place: &Place, rounds: usize) -> bool {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let clients: Vec<_> = (0..8).map(|_| Arc::new(place.client())).collect();
    runtime.block_on(async {
        for round in 0..rounds {
            let path = Path::from(format!("raced/{round}"));
            let all = clients.iter().enumerate().map(|(n, client)| {
                let (client, path) = (Arc::clone(client), path.clone());
                tokio::spawn(async move {
                    let bytes = vec![n as u8; 100_000];
                    match client.put_opts(&path, bytes.into(), PutMode::Create.into()).await {
                        Ok(_) => 1,
                        Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => 0,
                        Err(other) => panic!("{other}"),
                    }
                })
            });
            let mut winners = 0;
            for one in all.collect::<Vec<_>>() {
                winners += one.await.unwrap();
            }
            assert!(winners >= 1, "nobody was told");
            clients[0].get(&path).await.unwrap();
            if winners > 1 {
                return true;
            }
        }
        false
    })
}

#[test]
fn an_object_is_created_once_however_many_try() {
    let server = Inside::new(Creation::Atomic);
    assert!(!won_twice(&Place::new(server.address(), "p"), 50));
}

#[test]
fn seaweedfs_creates_an_object_once_however_many_try() {
    // Its losers wait a second for the winner's lock.
    let weed = Weed::new();
    assert!(!won_twice(&Place::new(weed.address(), "p"), 20));
}

#[test]
fn s3s_fs_by_itself_lets_two_create_one_object() {
    let server = Inside::new(Creation::Racing);
    assert!(won_twice(&Place::new(server.address(), "p"), 200));
}

#[test]
fn a_server_that_knows_no_condition_is_refused() {
    let server = Inside::new(Creation::Deaf);
    let refused = Place::new(server.address(), "p").open(64).unwrap_err();
    assert_eq!(refused.kind(), OpenErrorKind::Unfit, "{refused}");
}

#[test]
fn a_server_that_lets_two_create_one_object_is_refused() {
    let server = Inside::new(Creation::Racing);
    let unfit = |n: &u8| {
        let opened = Place::new(server.address(), &format!("p{n}")).open(64);
        opened.is_err_and(|error| error.kind() == OpenErrorKind::Unfit)
    };
    assert!((0..10).any(|n| unfit(&n)), "it may pass by luck, but not each time");
}

//! Whether a store will do: an object that is there is created no second time, also if many try at once. Else two writers could both believe that a
//! record is theirs.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use super::ask::NotOpen;
use crate::store::{Failure, Store, Tries};

/// How many create one object at once, before a volume is made.
const RACERS: u8 = 8;
/// Bytes of each one's: a server that looks first and writes what it was sent later takes a while for them.
const LEN: usize = 4096;

/// Creates an object, in a race where a volume `is_new`, and once more, and looks each time whose it is: as is done with a record, whatever
/// the store answers. A race at each start would cost seconds where the store has a lock for each object (SeaweedFS: up to 5 s).
pub(crate) async fn try_store(
    store: &Store,
    nonce: u128,
    is_new: bool,
    patience: Option<Duration>,
) -> Result<(), NotOpen> {
    let name = format!("try/{nonce:032x}");
    let racers = if is_new { RACERS } else { 1 };
    let tried = try_object(store, &name, racers, patience).await;
    let _ = store.delete(&name).await;
    tried
}

async fn try_object(
    store: &Store,
    name: &str,
    racers: u8,
    patience: Option<Duration>,
) -> Result<(), NotOpen> {
    let mut tries = Tries::new(patience);
    let mut first: Option<Bytes> = None;
    loop {
        let mut why = "an object that it took is not there".to_owned();
        for found in join_all((0..racers).map(|racer| create(store, name, racer))).await {
            match found {
                Ok(found) if first.get_or_insert_with(|| found.clone()) != &found => {
                    let why =
                        "of several that create an object at once, it lets more than one do it";
                    return Err(NotOpen::Unfit(format!("{why} ({CONDITION})")));
                }
                Ok(_) => {}
                Err(Failure::Other(failed)) => why = failed,
                Err(_) => {}
            }
        }
        if first.is_some() {
            break;
        }
        if !tries.again("a first object", &why).await {
            return Err(NotOpen::Store(why));
        }
    }
    loop {
        let why = match create(store, name, RACERS).await {
            Ok(found) if Some(&found) != first.as_ref() => {
                let why = "it creates an object that is there already";
                return Err(NotOpen::Unfit(format!("{why} ({CONDITION})")));
            }
            Ok(_) => return Ok(()),
            Err(Failure::Other(why)) => why,
            Err(_) => "an object that it took is not there".into(),
        };
        if !tries.again("a second object", &why).await {
            return Err(NotOpen::Store(why));
        }
    }
}

/// What it has to have.
const CONDITION: &str = "a conditional write with If-None-Match";

/// Creates the object, and gives the first byte of what lies there then.
async fn create(store: &Store, name: &str, what: u8) -> Result<Bytes, Failure> {
    let asked = store.put(name, &[vec![what; LEN].into()], true).await;
    match (asked, store.get(name, Some(0..1)).await) {
        (_, Ok(found)) => Ok(found),
        (Err(Failure::Other(why)), Err(Failure::Missing)) => Err(Failure::Other(why)),
        (_, Err(failure)) => Err(failure),
    }
}

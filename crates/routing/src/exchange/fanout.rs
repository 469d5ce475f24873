//! Fanout exchanges: every binding takes every message. The exchange's own list of bindings is all that is needed.

use super::{BadProperties, ExchangeType, Lookup, NewBinding, Scratch, Store};
use crate::bindings::{End, List};
use warren_model::Refusal;
use warren_protocol::Table;

#[derive(Clone, Debug)]
pub(crate) struct Fanout;

impl ExchangeType for Fanout {
    fn new(_: Table<'_>, _: &str) -> Result<Self, Refusal> {
        Ok(Self)
    }

    fn check_binding(&self, _: &[u8], _: Table<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    fn add(&mut self, _: &mut Store<'_>, _: &NewBinding<'_>) {}

    fn remove(&mut self, _: &mut Store<'_>, _: u32) {}

    fn route(
        &self,
        lookup: &Lookup<'_, '_>,
        _: &mut Scratch,
        hits: &mut Vec<End>,
    ) -> Result<(), BadProperties> {
        hits.extend(
            lookup
                .bindings
                .iter(List::Source, lookup.sources.head)
                .map(|number| lookup.bindings.get(number).destination),
        );
        Ok(())
    }

    fn explain(&self, _: &Lookup<'_, '_>, _: u32) -> Result<(bool, String), BadProperties> {
        Ok((true, "a fanout exchange matches every message".to_owned()))
    }
}

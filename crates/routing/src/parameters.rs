//! Parameters of virtual hosts: JSON under a component and a name, kept for whoever asks. None of them means anything to the table.

use crate::apply::Applied;
use crate::record;
use crate::table::Table;
use warren_model::Refusal;
use warren_model::command::ParameterKey;

impl Table {
    pub(crate) fn put_parameter(
        &mut self,
        parameter: &ParameterKey,
        value: &str,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        self.vhost(&parameter.vhost)?;
        let before = self.parameters.insert(parameter.clone(), value.to_owned());
        if before.as_deref() != Some(value) {
            let before = before.map(|before| record::global_value(&before));
            let after = Some(record::global_value(value));
            self.exchange_record(applied, record::parameter_key(parameter), before, after);
        }
        Ok(())
    }

    pub(crate) fn delete_parameter(
        &mut self,
        parameter: &ParameterKey,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        self.vhost(&parameter.vhost)?;
        let before = self.parameters.remove(parameter);
        let before = before.map(|before| record::global_value(&before));
        self.exchange_record(applied, record::parameter_key(parameter), before, None);
        Ok(())
    }

    /// The virtual host is about to go.
    pub(crate) fn erase_parameters(&mut self, vhost: &str, applied: &mut Applied) {
        let all: Vec<ParameterKey> = self.keys_of(vhost).cloned().collect();
        for parameter in all {
            if let Some(value) = self.parameters.remove(&parameter) {
                let key = record::parameter_key(&parameter);
                self.erase(applied, key, &record::global_value(&value));
            }
        }
    }

    fn keys_of(&self, vhost: &str) -> impl Iterator<Item = &ParameterKey> {
        self.parameters(vhost).map(|(parameter, _)| parameter)
    }

    pub(crate) fn parameter_records(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        let all = self.parameters.iter();
        all.map(|(parameter, value)| {
            let key = record::parameter_key(parameter);
            (key, record::global_value(value))
        })
    }

    /// A virtual host's parameters by component and name, with their JSON.
    pub fn parameters(&self, vhost: &str) -> impl Iterator<Item = (&ParameterKey, &str)> {
        let first = ParameterKey {
            vhost: vhost.to_owned(),
            component: String::new(),
            name: String::new(),
        };
        let vhost = vhost.to_owned();
        self.parameters
            .range(first..)
            .take_while(move |(parameter, _)| parameter.vhost == vhost)
            .map(|(parameter, value)| (parameter, value.as_str()))
    }

    /// A parameter's JSON.
    pub fn parameter(&self, parameter: &ParameterKey) -> Option<&str> {
        self.parameters.get(parameter).map(String::as_str)
    }
}

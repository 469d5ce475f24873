//! How a method's arguments become bytes: one trait for field types, one for argument lists, one macro that writes both from a struct.

use crate::error::DecodeError;
use crate::shortstr::ShortStr;
use crate::table::Table;
use crate::wire::{Reader, Writer};

/// A type that a method argument can have.
pub(super) trait Field<'a>: Sized {
    fn read(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, DecodeError>;
    fn write(&self, writer: &mut Writer<'_>);
}

/// A method's arguments, without its class and method id.
pub(super) trait Arguments<'a>: Sized {
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError>;
    fn write(&self, writer: &mut Writer<'_>);
}

macro_rules! integer_field {
    ($($ty:ident),+) => {
        $(
            impl<'a> Field<'a> for $ty {
                #[inline(always)]
                fn read(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, DecodeError> {
                    reader.$ty(what)
                }

                #[inline(always)]
                fn write(&self, writer: &mut Writer<'_>) {
                    writer.raw(&self.to_be_bytes());
                }
            }
        )+
    };
}

integer_field!(u8, u16, u32, u64);

impl<'a> Field<'a> for bool {
    #[inline(always)]
    fn read(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, DecodeError> {
        reader.bit(what)
    }

    #[inline(always)]
    fn write(&self, writer: &mut Writer<'_>) {
        writer.bit(*self);
    }
}

impl<'a> Field<'a> for ShortStr<'a> {
    #[inline(always)]
    fn read(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, DecodeError> {
        reader.short_str(what)
    }

    #[inline(always)]
    fn write(&self, writer: &mut Writer<'_>) {
        writer.short_str(self.as_bytes());
    }
}

impl<'a> Field<'a> for &'a [u8] {
    #[inline(always)]
    fn read(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, DecodeError> {
        reader.long_str(what)
    }

    #[inline(always)]
    fn write(&self, writer: &mut Writer<'_>) {
        writer.long_str(self);
    }
}

impl<'a> Field<'a> for Table<'a> {
    #[inline(always)]
    fn read(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, DecodeError> {
        Table::parse(reader.long_str(what)?)
    }

    #[inline(always)]
    fn write(&self, writer: &mut Writer<'_>) {
        writer.long_str(self.as_bytes());
    }
}

/// Declares argument structs with their fields in wire order. `skip(…)` before or after the fields names the types of reserved fields:
/// read and forgotten, written as zero.
macro_rules! arguments {
    ($(
        $(#[$meta:meta])*
        $name:ident $(<$lt:lifetime>)? $(skip($($before:ty),+))? {
            $($(#[$field_meta:meta])* $field:ident: $ty:ty,)+
        } $(=> skip($($after:ty),+))?
    )+) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
            pub struct $name $(<$lt>)? {
                $($(#[$field_meta])* pub $field: $ty,)+
            }

            impl<'a> $crate::method::fields::Arguments<'a> for $name $(<$lt>)? {
                #[inline(always)]
                fn read(
                    reader: &mut $crate::wire::Reader<'a>,
                ) -> Result<Self, $crate::error::DecodeError> {
                    use $crate::method::fields::Field;
                    $($(<$before as Field>::read(reader, concat!(stringify!($name), ": reserved"))?;)+)?
                    // Struct fields are evaluated in the order written: the wire's.
                    let arguments = Self {
                        $($field: Field::read(
                            reader,
                            concat!(stringify!($name), ": ", stringify!($field)),
                        )?,)+
                    };
                    $($(<$after as Field>::read(reader, concat!(stringify!($name), ": reserved"))?;)+)?
                    Ok(arguments)
                }

                #[inline(always)]
                fn write(&self, writer: &mut $crate::wire::Writer<'_>) {
                    use $crate::method::fields::Field;
                    $($(<$before as Field>::write(&Default::default(), writer);)+)?
                    $(Field::write(&self.$field, writer);)+
                    $($(<$after as Field>::write(&Default::default(), writer);)+)?
                }
            }
        )+
    };
}

pub(super) use arguments;

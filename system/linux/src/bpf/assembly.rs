//! Assembler of eBPF instructions, with jumps to labels.
//!
//! Source: RFC 9669 (BPF Instruction Set Architecture).

use std::collections::BTreeMap;

/// A register. `R0` is the result, `R1` to `R5` are arguments, `R6` to `R9` are preserved across
/// calls, `R10` is the frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R10 = 10,
}

/// Width of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// Condition of a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum If {
    Equal = 0x10,
    Greater = 0x20,
    NotEqual = 0x50,
}

/// A program under construction.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    code: Vec<u64>,
    labels: BTreeMap<&'static str, usize>,
    jumps: Vec<(usize, &'static str)>,
}

impl Assembly {
    fn push(&mut self, opcode: u8, (to, from): (u8, u8), offset: i16, immediate: i32) -> &mut Self {
        let bytes = [opcode, from << 4 | to];
        let [a, b] = offset.to_ne_bytes();
        let [c, d, e, f] = immediate.to_ne_bytes();
        self.code
            .push(u64::from_ne_bytes([bytes[0], bytes[1], a, b, c, d, e, f]));
        self
    }

    /// `to = from`
    pub(super) fn copy(&mut self, to: Register, from: Register) -> &mut Self {
        self.push(0xbf, (to as u8, from as u8), 0, 0)
    }

    /// `to = value`
    pub(super) fn set(&mut self, to: Register, value: i32) -> &mut Self {
        self.push(0xb7, (to as u8, 0), 0, value)
    }

    /// `to += value`
    pub(super) fn add(&mut self, to: Register, value: i32) -> &mut Self {
        self.push(0x07, (to as u8, 0), 0, value)
    }

    /// `to &= value`
    pub(super) fn and(&mut self, to: Register, value: i32) -> &mut Self {
        self.push(0x57, (to as u8, 0), 0, value)
    }

    /// `to %= value`, which is not zero
    pub(super) fn modulo(&mut self, to: Register, value: i32) -> &mut Self {
        self.push(0x97, (to as u8, 0), 0, value)
    }

    /// `R0` = value at an offset of the packet whose context is in `R6`, in host byte order; the
    /// program ends with 0 if the packet is shorter.
    pub(super) fn load_packet(&mut self, width: Width, offset: i32) -> &mut Self {
        self.push(0x20 | width as u8, (0, 0), 0, offset)
    }

    /// `to = value`, all 64 bits
    pub(super) fn set_wide(&mut self, to: Register, value: u64) -> &mut Self {
        self.push(0x18, (to as u8, 0), 0, (value as u32).cast_signed());
        self.push(0, (0, 0), 0, ((value >> 32) as u32).cast_signed())
    }

    /// `to = map`, by its file descriptor
    pub(super) fn set_map(&mut self, to: Register, map: i32) -> &mut Self {
        self.push(0x18, (to as u8, 1), 0, map);
        self.push(0, (0, 0), 0, 0)
    }

    /// `to = base[offset]`
    pub(super) fn load(&mut self, width: Width, to: Register, base: Register, offset: i16) -> &mut Self {
        self.push(0x61 | width as u8, (to as u8, base as u8), offset, 0)
    }

    /// `base[offset] = from`
    pub(super) fn store(&mut self, width: Width, base: Register, offset: i16, from: Register) -> &mut Self {
        self.push(0x63 | width as u8, (base as u8, from as u8), offset, 0)
    }

    /// Jumps if the condition holds for `left` and a value.
    pub(super) fn jump_if(&mut self, when: If, left: Register, value: i32, label: &'static str) -> &mut Self {
        self.jumps.push((self.code.len(), label));
        self.push(0x05 | when as u8, (left as u8, 0), 0, value)
    }

    /// Jumps if the condition holds for two registers.
    pub(super) fn jump_if_both(
        &mut self,
        when: If,
        left: Register,
        right: Register,
        label: &'static str,
    ) -> &mut Self {
        self.jumps.push((self.code.len(), label));
        self.push(0x0d | when as u8, (left as u8, right as u8), 0, 0)
    }

    /// Jumps.
    pub(super) fn jump(&mut self, label: &'static str) -> &mut Self {
        self.jumps.push((self.code.len(), label));
        self.push(0x05, (0, 0), 0, 0)
    }

    /// Calls a helper of the kernel.
    pub(super) fn call(&mut self, helper: i32) -> &mut Self {
        self.push(0x85, (0, 0), 0, helper)
    }

    /// Ends the program with `result`.
    pub(super) fn exit(&mut self, result: i32) -> &mut Self {
        self.set(Register::R0, result).leave()
    }

    /// Ends the program with the value of `R0`.
    pub(super) fn leave(&mut self) -> &mut Self {
        self.push(0x95, (0, 0), 0, 0)
    }

    /// Defines a label at the current position.
    pub(super) fn label(&mut self, label: &'static str) -> &mut Self {
        self.labels.insert(label, self.code.len());
        self
    }

    /// Returns the instructions.
    ///
    /// # Panics
    /// A jump refers to an undefined label.
    pub(super) fn finish(&mut self) -> Vec<u64> {
        for (at, label) in &self.jumps {
            let distance = self.labels[label] as i64 - *at as i64 - 1;
            let offset = i16::try_from(distance).expect("programs are short");
            let mut bytes = self.code[*at].to_ne_bytes();
            bytes[2..4].copy_from_slice(&offset.to_ne_bytes());
            self.code[*at] = u64::from_ne_bytes(bytes);
        }
        std::mem::take(&mut self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_count_from_behind_themselves() {
        let mut assembly = Assembly::default();
        assembly
            .jump_if(If::Equal, Register::R1, 5, "end")
            .set(Register::R2, 1)
            .label("end")
            .exit(0);
        let code = assembly.finish();
        assert_eq!(code[0].to_ne_bytes(), [0x15, 0x01, 1, 0, 5, 0, 0, 0]);
        assert_eq!(code.len(), 4);
    }
}

package fenceagent

import (
	"errors"
	"slices"
	"strings"
)

// ErrRefused is in the error of a switch that refused the login. What only may be a refusal is none: a BMC must be asked again after an outage, and only the
// one that refuses locks an account.
var ErrRefused = errors.New("the power switch refused the login")

// refusals are the lines with which ipmitool 1.8.19 -v reports a refused login. Without -v it prints the same for a wrong password as for a BMC that does not
// answer, and so does every agent of the family, which drops what ipmitool prints (fence_ipmilan 4.12.1, lines 12-16, fencing.py:994). Over IPMI 1.5 it
// does not tell a wrong password from a lost packet (src/plugins/lan/lan.c:1653).
var refusals = []string{
	"> RAKP 2 HMAC is invalid",                                        // the password: src/plugins/lanplus/lanplus.c:3114
	"RAKP 2 message indicates an error : unauthorized name",           // the user: lanplus.c:3091, lanplus_strings.c:19
	"RAKP 2 message indicates an error : unauthorized role requested", // its privilege level: lanplus_strings.c:16
	"Invalid user name",                                               // over IPMI 1.5: src/plugins/lan/lan.c:1587
}

// refused reports whether ipmitool failed because it was refused.
func refused(exit int, text string) bool {
	for line := range strings.Lines(text) {
		if exit != 0 && slices.Contains(refusals, strings.TrimSpace(line)) {
			return true
		}
	}
	return false
}

// Package identity decides what a string says about the machine, the boot or the node that it was read from. No other code compares such
// strings.
package identity

import (
	"strings"

	"belay.dev/belay/internal/planted"
)

// placeholders are what makers of boards and of firmware leave where a UUID of the machine belongs.
var placeholders = map[string]bool{
	// AMI's firmware, in both byte orders.
	"03000200-0400-0500-0006-000700080009": true,
	"00020003-0004-0005-0006-000700080009": true,
	// Words of DMI tables and of the tools that read them (dmidecode 3.6 dmidecode.c dmi_system_uuid).
	"not settable": true, "not present": true, "not specified": true, "none": true, "unknown": true, "n/a": true,
	"default string": true, "to be filled by o.e.m.": true,
}

// Of returns the one form of a string that identifies something, empty for one that identifies nothing: it is empty, or many have it. UUIDs
// are the same in upper and lower case, with and without dashes and braces. Other strings are taken as they are.
func Of(s string) string {
	s = strings.TrimSpace(s)
	uuid, ok := canonical(s)
	switch {
	case !ok && placeholders[strings.ToLower(s)]:
		return ""
	case !ok:
		return s
	case !planted.Bogus && (placeholders[uuid] || uniform(uuid) || strings.HasPrefix(uuid, "12345678-1234-")):
		return ""
	}
	return uuid
}

// Same reports whether two strings identify one and the same thing.
func Same(was, is string) bool {
	was = Of(was)
	return was != "" && was == Of(is)
}

// Another reports whether two strings identify different things. Those that differ only in the case of letters, as some clouds write an ID,
// or in the byte order of a UUID may be the same or not. With SMBIOS 2.6 the byte order has changed (torvalds/linux
// drivers/firmware/dmi_scan.c dmi_save_uuid): a VM whose hardware version was raised has the other one (charm-kubernetes-control-plane#102).
func Another(was, is string) bool {
	was, is = Of(was), Of(is)
	return was != "" && is != "" && !strings.EqualFold(was, is) && !swapped(was, is)
}

// swapped reports whether two UUIDs are one in two byte orders: the bytes of the first three fields are turned round.
func swapped(was, is string) bool {
	if !isCanonical(was) || !isCanonical(is) || was[18:] != is[18:] {
		return false
	}
	for _, field := range [][2]int{{0, 8}, {9, 13}, {14, 18}} {
		for i, from := field[0], field[1]-2; from >= field[0]; i, from = i+2, from-2 {
			if was[i:i+2] != is[from:from+2] {
				return false
			}
		}
	}
	return true
}

// OfName reports whether a provider ID is made from the name of the node, as by k3s ("k3s://NODE") and GCE ("gce://PROJECT/ZONE/NODE"). Any
// machine that takes the name has it.
func OfName(providerID, node string) bool {
	return node != "" && providerID[strings.LastIndexByte(providerID, '/')+1:] == node
}

const (
	uuidLength = 36 // with dashes
	uuidDigits = 32
)

// canonical returns a UUID in lower case with dashes. It allocates nothing for one that is written so.
func canonical(s string) (string, bool) {
	if isCanonical(s) {
		return s, true
	}
	if len(s) < uuidDigits || strings.ContainsRune(s, '/') {
		return "", false
	}
	s = strings.ToLower(s)
	s = strings.TrimPrefix(strings.TrimPrefix(s, "urn:"), "uuid:")
	s = strings.TrimSuffix(strings.TrimPrefix(s, "{"), "}")
	digits := strings.ReplaceAll(s, "-", "")
	if len(digits) != uuidDigits || strings.Trim(digits, "0123456789abcdef") != "" {
		return "", false
	}
	return strings.Join([]string{digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]}, "-"), true
}

func isCanonical(s string) bool {
	if len(s) != uuidLength {
		return false
	}
	for i := range len(s) {
		dash, digit := i == 8 || i == 13 || i == 18 || i == 23, s[i] >= '0' && s[i] <= '9' || s[i] >= 'a' && s[i] <= 'f'
		if dash && s[i] != '-' || !dash && !digit {
			return false
		}
	}
	return true
}

// uniform reports whether a UUID has one digit only: zeros, as without a UUID, or ones, as in erased flash memory.
func uniform(uuid string) bool { return strings.Trim(uuid, uuid[:1]+"-") == "" }

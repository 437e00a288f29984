// Package bench counts and times the plane against the aims of the project: one
// ControllerPublishVolume per attach, and a tenth of upstream's time from a bound
// pod to a reported volume. It holds tests only.
package bench

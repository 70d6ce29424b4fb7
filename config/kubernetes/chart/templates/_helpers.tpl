{{/* The name of all objects. */}}
{{- define "stepvault.name" -}}
{{- .Values.name | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "stepvault.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "stepvault.name" .) -}}
{{- end -}}

{{/* The labels by which Services, PodDisruptionBudgets and PodMonitors select pods. */}}
{{- define "stepvault.labels" -}}
app.kubernetes.io/name: stepvault
app.kubernetes.io/instance: {{ include "stepvault.name" . }}
{{- end -}}

{{/* Whether the pods have a trainer: "true" or "". */}}
{{- define "stepvault.trains" -}}
{{- if has .Values.kind (list "Job" "IndexedJob" "JobSet") }}true{{ end -}}
{{- end -}}

{{/* Whether several pods save one step together: "true" or "". */}}
{{- define "stepvault.severalPods" -}}
{{- if has .Values.kind (list "IndexedJob" "JobSet") }}true{{ end -}}
{{- end -}}

{{/* The configuration as JSON, after the checks that the chart depends on. */}}
{{- define "stepvault.config" -}}
{{- if not .Values.config -}}
  {{- fail "there is no configuration; hint: give --set-file config=stepvault.toml" -}}
{{- end -}}
{{- $config := fromToml .Values.config -}}
{{- if hasKey $config "Error" -}}
  {{- fail (printf "config is not TOML: %s; hint: run stepvault config check on the file" $config.Error) -}}
{{- end -}}
{{- $runs := $config.run | default dict -}}
{{- if not $runs -}}
  {{- fail "config has no run; hint: add a table [run.\"NAME\"]" -}}
{{- end -}}
{{- if and (include "stepvault.trains" .) (ne (len $runs) 1) -}}
  {{- fail (printf "config has %d runs, and a training job has one; hint: install the chart once for each" (len $runs)) -}}
{{- end -}}
{{- if ne .Values.kind "Maintenance" -}}
  {{- $below := printf "%s/" .Values.volume.mountPath -}}
  {{- $directory := dig "local" "directory" "" $config -}}
  {{- if not (hasPrefix $below $directory) -}}
    {{- fail (printf "local.directory is %q, which is not below volume.mountPath; hint: set it to %q" $directory (printf "%svault" $below)) -}}
  {{- end -}}
  {{- range $name, $run := $runs -}}
    {{- if not (hasPrefix $below (dig "watch" "" $run)) -}}
      {{- fail (printf "the directory that run %q watches is not below volume.mountPath; hint: set watch = %q" $name (printf "%s%s" $below $name)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- toJson $config -}}
{{- end -}}

{{/* The directory of a training job's only run. */}}
{{- define "stepvault.watch" -}}
{{- range (include "stepvault.config" . | fromJson).run }}{{ .watch }}{{ end -}}
{{- end -}}

{{/* The seconds of a duration, such as "90s" or "1h 30m". */}}
{{- define "stepvault.seconds" -}}
{{- if not (regexMatch "^( *[0-9]+ *[smhd])+ *$" .) -}}
  {{- fail (printf "%q is not a duration; hint: write a number and s, m, h or d, such as \"10m\"" .) -}}
{{- end -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+ *[smhd]" . -1 -}}
  {{- $factor := get (dict "s" 1 "m" 60 "h" 3600 "d" 86400) (regexFind "[smhd]" .) -}}
  {{- $sum = add $sum (mul (regexFind "[0-9]+" . | int) $factor) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* The grace period: the drain, a tenth of it and at least 30 s for what surrounds it, and beside a sidecar the time in
which the trainer exits, because the kubelet signals the agent after that. */}}
{{- define "stepvault.gracePeriod" -}}
{{- $config := include "stepvault.config" . | fromJson -}}
{{- $drain := include "stepvault.seconds" (dig "agent" "drain-deadline" "90s" $config) | int -}}
{{- $grace := add $drain (max 30 (div $drain 10)) -}}
{{- if and .Values.sidecar (include "stepvault.trains" .) -}}
  {{- $grace = add $grace (include "stepvault.seconds" .Values.trainer.shutdown | int) -}}
{{- end -}}
{{- $grace -}}
{{- end -}}

{{/* The port of the metrics; empty without metrics. */}}
{{- define "stepvault.metricsPort" -}}
{{- $config := include "stepvault.config" . | fromJson -}}
{{- $listen := dig "agent" "metrics-listen" "" $config -}}
{{- if and .Values.podMonitor.enabled (not (regexMatch "^(0\\.0\\.0\\.0|\\[::\\]):[0-9]+$" $listen)) -}}
  {{- fail (printf "Prometheus cannot reach agent.metrics-listen, which is %q; hint: set it to \"0.0.0.0:9464\"" $listen) -}}
{{- end -}}
{{- $token := dig "agent" "metrics-token-file" "" $config -}}
{{- $mounted := printf "/etc/stepvault-token/%s" .Values.podMonitor.tokenKey -}}
{{- if and .Values.podMonitor.tokenSecret (ne $token $mounted) -}}
  {{- fail (printf "metrics-token-file is %q, and the Secret is mounted elsewhere; hint: set it to %q" $token $mounted) -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled (not .Values.podMonitor.tokenSecret) (not (dig "agent" "metrics-without-token" false $config)) -}}
  {{- fail "the metrics have no token; hint: set podMonitor.tokenSecret, or agent.metrics-without-token = true where a network policy protects them" -}}
{{- end -}}
{{- if not (hasPrefix "127." $listen) }}{{ regexFind "[0-9]+$" $listen }}{{ end -}}
{{- end -}}

{{/* The gibibytes of a quantity in Gi or Ti. */}}
{{- define "stepvault.gibibytes" -}}
{{- mul (regexFind "^[0-9]+" . | int) (ternary 1024 1 (hasSuffix "Ti" .)) -}}
{{- end -}}

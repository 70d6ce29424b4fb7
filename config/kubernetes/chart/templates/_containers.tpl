{{/* The security context of a container that runs only stepvault. */}}
{{- define "stepvault.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The variables by which stepvault knows the node and the launch. */}}
{{- define "stepvault.launchVariables" -}}
{{- if include "stepvault.severalPods" . -}}
# Kubernetes sets JOB_COMPLETION_INDEX, which names the node.
- name: STEPVAULT_NODES
  value: {{ .Values.nodes | quote }}
# A Job that is created again has another uid: its steps belong to a new attempt.
- name: STEPVAULT_LAUNCH
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['batch.kubernetes.io/controller-uid']
{{- else if eq .Values.kind "Job" -}}
# Each pod is a launch of its own.
- name: STEPVAULT_LAUNCH
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: STEPVAULT_NODE
  value: trainer
{{- else if eq .Values.kind "DaemonSet" -}}
- name: STEPVAULT_NODE
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end -}}
{{- end -}}

{{/* The variables of a container that runs only stepvault. */}}
{{- define "stepvault.ownVariables" -}}
# Else the C library keeps memory for each thread, which counts with very many files.
- name: MALLOC_ARENA_MAX
  value: "2"
{{- with include "stepvault.launchVariables" . }}
{{ . }}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The variables of the trainer. */}}
{{- define "stepvault.trainerVariables" -}}
{{- if include "stepvault.severalPods" . }}
- name: MASTER_ADDR
  value: {{ include "stepvault.firstPod" . }}
{{- end }}
{{- if not .Values.sidecar }}
{{ include "stepvault.launchVariables" . }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- else if include "stepvault.severalPods" . }}
- name: STEPVAULT_NODES
  value: {{ .Values.nodes | quote }}
{{- end }}
{{- with .Values.trainer.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The address of the first pod. */}}
{{- define "stepvault.firstPod" -}}
{{- $name := include "stepvault.name" . -}}
{{ $name }}{{ if eq .Values.kind "JobSet" }}-node-0{{ end }}-0.{{ $name }}
{{- end -}}

{{/* The mounts of a container that runs stepvault. */}}
{{- define "stepvault.mounts" -}}
{{- if ne .Values.kind "Maintenance" -}}
- name: checkpoints
  mountPath: {{ .Values.volume.mountPath }}
{{ end -}}
- name: config
  mountPath: /etc/stepvault
  readOnly: true
{{- if .Values.podMonitor.tokenSecret }}
- name: metrics-token
  mountPath: /etc/stepvault-token
  readOnly: true
{{- end }}
{{- end -}}

{{- define "stepvault.metricsPorts" -}}
{{- with include "stepvault.metricsPort" . -}}
ports:
  - name: metrics
    containerPort: {{ . }}
{{- end -}}
{{- end -}}

{{/* The agent: the sidecar of a trainer, or the container of a DaemonSet. */}}
{{- define "stepvault.agent" -}}
name: agent
image: {{ .Values.image }}
args: [agent]
env:
  {{- include "stepvault.ownVariables" . | nindent 2 }}
{{- with include "stepvault.metricsPorts" . }}
{{ . }}
{{- end }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  {{- include "stepvault.confined" . | nindent 2 }}
volumeMounts:
  {{- include "stepvault.mounts" . | nindent 2 }}
{{- end -}}

{{/* The init containers of a trainer that has a sidecar. */}}
{{- define "stepvault.sidecar" -}}
# Exit code 10 means that no step exists yet: a new run. Any other failure (11: none is valid, 12: a store did not
# answer) fails the pod, so that existing steps are not overwritten.
- name: restore
  image: {{ .Values.image }}
  command: [/bin/sh, -c]
  args:
    - |
      stepvault restore --into {{ include "stepvault.watch" . }}
      code=$?
      [ "$code" -eq 10 ] || exit "$code"
  env:
    {{- include "stepvault.ownVariables" . | nindent 4 }}
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    {{- include "stepvault.confined" . | nindent 4 }}
  volumeMounts:
    {{- include "stepvault.mounts" . | nindent 4 }}
# restartPolicy: Always makes it a sidecar: it starts before the trainer, and gets SIGTERM when the trainer has ended.
# It has no preStop hook: the kubelet runs the hooks of all containers at once, while the trainer is still writing its
# last step, and a drained agent seals no more steps.
- {{ include "stepvault.agent" . | nindent 2 | trim }}
  restartPolicy: Always
  # The trainer starts when the agent answers: with --quiet the exit code is 12 until then. No other probe: a slow or
  # unreachable store is no reason to restart the agent.
  startupProbe:
    exec:
      command: [stepvault, status, --quiet]
    periodSeconds: 2
    timeoutSeconds: 10
    failureThreshold: 60
{{- end -}}

{{/* The resources of the trainer. Without a request for ephemeral storage, the scheduler does not know what the
checkpoints take, and the kubelet evicts the pod when the node's disk is full. */}}
{{- define "stepvault.trainerResources" -}}
{{- $storage := 10 -}}
{{- if not (or .Values.volume.hostPath .Values.volume.storageClass) -}}
  {{- $storage = add 10 (include "stepvault.gibibytes" .Values.volume.size | int) -}}
{{- end -}}
{{- $default := dict "requests" (dict "ephemeral-storage" (printf "%dGi" (int $storage))) -}}
{{- mergeOverwrite $default (deepCopy .Values.trainer.resources) | toYaml -}}
{{- end -}}

{{- define "stepvault.trainer" -}}
name: trainer
image: {{ .Values.trainer.image }}
command:
  {{- if not .Values.sidecar }}
  - stepvault
  - run
  - --
  {{- end }}
  {{- toYaml .Values.trainer.command | nindent 2 }}
{{- with include "stepvault.trainerVariables" . | trim }}
env:
  {{- . | nindent 2 }}
{{- end }}
{{- if not .Values.sidecar }}
{{- with include "stepvault.metricsPorts" . }}
{{ . }}
{{- end }}
{{- end }}
# The ephemeral storage is that of the volume, where it is an emptyDir, and 10Gi.
resources:
  {{- include "stepvault.trainerResources" . | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  {{- if .Values.trainer.readOnlyRootFilesystem }}
  readOnlyRootFilesystem: true
  {{- end }}
  capabilities:
    drop: [ALL]
volumeMounts:
  {{- if .Values.sidecar }}
  - name: checkpoints
    mountPath: {{ .Values.volume.mountPath }}
  {{- else }}
  {{- include "stepvault.mounts" . | nindent 2 }}
  {{- end }}
  - name: shared-memory
    mountPath: /dev/shm
  {{- if .Values.trainer.readOnlyRootFilesystem }}
  - name: tmp
    mountPath: /tmp
  {{- end }}
{{- end -}}
